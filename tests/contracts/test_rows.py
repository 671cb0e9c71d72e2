"""Rows of stored tensors, and dialects laid over a format's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from inferno.contracts import Dialect, RowRange, RowSplit, RowsView, TensorInfo, TextAssets


class Stored:
    """A checkpoint of the tensors it is given."""

    def __init__(self, **tensors: Tensor) -> None:
        self.held = tensors
        self.config: Mapping[str, Any] = {"model_type": "toy"}
        self.closed = False

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            name: TensorInfo(str(t.dtype).removeprefix("torch."), tuple(t.shape), t.nbytes)
            for name, t in self.held.items()
        }

    def text(self) -> TextAssets:
        return TextAssets()

    def read(self, name: str) -> Tensor:
        return self.held[name]

    def close(self) -> None:
        self.closed = True


STACK = torch.arange(2 * 6 * 4).view(2, 6, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=["dense", "packed"])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (RowRange("stack", 1), STACK[1]),
        (RowRange("stack", 0, slice(2, 5)), STACK[0, 2:5]),
        (RowRange("stack", 1, slice(1, None, 2)), STACK[1, 1::2]),
        (RowRange("matrix", rows=slice(0, 4)), STACK[0, :4]),
        (RowRange("matrix", rows=slice(0, 0)), STACK[0, :0]),
        (RowRange("bias", rows=slice(4, 6)), STACK[0, 4:6, 0]),
        (RowRange("biases", 1, slice(0, None, 2)), STACK[1, ::2, 0]),
        (RowRange("stack", 1, slice(0, 3), transposed=True), STACK[1].T[:3]),
    ],
)
def test_rows_are_views_of_what_is_stored_and_their_headers_are_theirs(
    dtype: torch.dtype, rows: RowRange, expected: Tensor
) -> None:
    stack = STACK.to(dtype)
    stored = Stored(stack=stack, matrix=stack[0], bias=stack[0, :, 0], biases=stack[:, :, 0])
    view = RowsView(stored, {"ours": rows})
    tensor, info = view.read("ours"), view.tensors["ours"]
    assert torch.equal(tensor, expected.to(dtype))
    assert tensor.untyped_storage().data_ptr() == stack.untyped_storage().data_ptr()
    assert (info.shape, info.nbytes) == (tuple(expected.shape), tensor.nbytes)
    assert info.dtype == str(dtype).removeprefix("torch.")


def test_a_view_has_the_checkpoints_config_and_closes_it() -> None:
    stored = Stored(matrix=STACK[0])
    view = RowsView(stored, {})
    assert view.config == {"model_type": "toy"} and view.text() == TextAssets()
    assert not view.tensors
    view.close()
    assert stored.closed


def test_a_dialect_is_laid_over_its_formats_defaults() -> None:
    fused = RowSplit({"q": 1, "k": 1})
    defaults = Dialect(
        fields={"head_dim": "key_length", "hidden_size": "length"},
        modules={"norm": "model.norm", "output": "lm_head"},
        rows={"attn_qkv": fused},
    )
    dialect = Dialect(
        architecture="toy",
        fields={"head_dim": None, "layer_norm_eps": "epsilon"},
        modules={"norm": "model.final_layernorm"},
        rows={"attn_kv": fused},
    )
    whole = dialect.over(defaults)
    assert whole.architecture == "toy"
    assert whole.fields == {"layer_norm_eps": "epsilon", "hidden_size": "length"}
    assert whole.modules == {"norm": "model.final_layernorm", "output": "lm_head"}
    assert whole.rows == {"attn_kv": fused, "attn_qkv": fused}
