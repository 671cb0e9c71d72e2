"""Tensors of another class under a family's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from attrs import field, frozen
from torch import Tensor

from inferno.contracts import (
    Architecture,
    Checkpoint,
    Fused,
    HeldMatrix,
    Spelling,
    StoredMatrix,
    TensorInfo,
    TextAssets,
    spelled,
)
from inferno.errors import CheckpointError, InfernoError, UnsupportedError

SPELLING = Spelling(
    name="OtherForCausalLM",
    fields={"n_head": "num_attention_heads"},
    modules={"h.{n}.out": "layers.{n}.o_proj", "h.{n}.correction": "layers.{n}.gate.bias"},
    fused={"h.{n}.qkv": Fused({"layers.{n}.q": 2, "layers.{n}.k": 1}, "num_attention_heads")},
    unused=(r".*\.table",),
)


@frozen
class Held:
    """A checkpoint in memory."""

    values: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(factory=lambda: {"n_head": 2})

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo("float32", tuple(tensor.shape), tensor.nbytes)
            for name, tensor in self.values.items()
        }

    def text(self) -> TextAssets:
        return TextAssets()

    def read(self, name: str) -> Tensor:
        return self.values[name]

    def close(self) -> None: ...


def viewed(checkpoint: Checkpoint) -> Checkpoint:
    family = Architecture(name="FamilyForCausalLM", config=dict, build="inferno.nn:CausalLM")
    adapt = spelled(family, SPELLING).adapt
    assert adapt is not None
    return adapt(checkpoint)


def test_modules_tensors_and_groups_of_rows_have_the_family_s_names() -> None:
    rows_RI = torch.arange(12.0).view(6, 2)
    held = {
        "h.1.qkv.weight": rows_RI,
        "h.1.qkv.bias": rows_RI[:, 0],
        "h.1.out.weight": torch.ones(2, 2),
        "h.1.correction": torch.ones(2),
        "h.1.table": torch.ones(1),
        "norm.weight": torch.ones(2),
    }
    view = viewed(Held(held))
    assert view.config == {"num_attention_heads": 2, "spelled_as": "OtherForCausalLM"}
    shapes = {name: info.shape for name, info in view.tensors.items()}
    assert shapes == {
        "layers.1.q.weight": (4, 2),
        "layers.1.k.weight": (2, 2),
        "layers.1.q.bias": (4,),
        "layers.1.k.bias": (2,),
        "layers.1.o_proj.weight": (2, 2),
        "layers.1.gate.bias": (2,),
        "norm.weight": (2,),
    }
    assert torch.equal(view.read("layers.1.q.weight"), rows_RI[[0, 1, 3, 4]])
    assert torch.equal(view.read("layers.1.k.bias"), rows_RI[[2, 5], 0])
    assert view.tensors["layers.1.q.weight"].nbytes == 4 * 2 * 4


def test_a_view_is_viewed_as_it_is() -> None:
    once = viewed(Held({"h.0.qkv.weight": torch.ones(6, 2)}))
    twice = viewed(once)
    assert twice.tensors == once.tensors and twice.config == once.config


@frozen
class Quantized(Held):
    """A checkpoint whose scheme does not say how its tensors lie."""

    def held(self, stored: StoredMatrix) -> HeldMatrix:
        return HeldMatrix(shape=(6, 2), nbytes=12)


def test_a_quantized_matrix_is_not_split_where_its_scheme_does_not_say_how() -> None:
    with pytest.raises(UnsupportedError, match="its scheme does not say how") as refused:
        viewed(Quantized({"h.0.qkv.qweight": torch.ones(6, 2)}))
    assert "in which the matrices are apart" in refused.value.remedy


@pytest.mark.parametrize(
    ("held", "config", "error", "why"),
    [
        ("h.0.qkv.qweight", {"n_head": 2}, UnsupportedError, "quantized"),
        ("h.0.qkv.weight", {"n_head": 5}, CheckpointError, "6 rows, which is not divisible by 15"),
        ("h.0.qkv.weight", {"n_head": "2"}, CheckpointError, "num_attention_heads is '2'"),
        ("h.0.qkv.weight", {}, CheckpointError, "num_attention_heads is None"),
    ],
)
def test_a_matrix_that_cannot_be_split_is_an_error(
    held: str, config: Mapping[str, Any], error: type[InfernoError], why: str
) -> None:
    with pytest.raises(error, match=why) as refused:
        viewed(Held({held: torch.ones(6, 2)}, config))
    assert refused.value.remedy
