"""Unpacking is bit-exact, for every bit width, group, order and version; models give the tokens of
their dense twins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gptq_files import Format, decode, encode, toy_checkpoints
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from inferno.contracts import TensorInfo
from inferno.errors import CheckpointError, InfernoError
from inferno.nn import IntGroups, Permuted, Weight
from inferno.testing import (
    TOY_MOE_SIZES,
    TOY_SIZES,
    QuantSchemeTests,
    alike,
    assert_near,
    assert_refused,
    assert_same_tokens,
    change_quant_config,
    load_catalog,
    load_toy,
    plan_of,
    stored_matrix,
    torch_only,
)
from inferno_gptq import holds, refuses
from inferno_gptq.weight import load

LLAMA = {**TOY_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN3_MOE = {
    **TOY_MOE_SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
}
FORMATS = [
    Format(bits=bits, group=group, symmetric=symmetric, act_order=act_order, version=version)
    for bits in (2, 3, 4, 8)
    for group, symmetric, act_order, version in (
        (32, True, False, "gptq"),
        (64, False, True, "gptq_v2"),
        (-1, False, False, "gptq_v2"),
    )
]


VECTORS = load_file(Path(__file__).with_name("vectors.safetensors"))


def loaded(parts: Mapping[str, Tensor], config: Mapping[str, Any]) -> Weight:
    return load(stored_matrix(parts, config), parts, dtype="float32")


class GptqTests(QuantSchemeTests):
    shapes = ((32, 256), (64, 192))
    form: Format

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        weight_OI = torch.randn(rows, columns, generator=generator)
        parts, _ = encode(weight_OI, self.form)  # one seed: matrices of one input share their order
        return parts

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return decode(parts, self.form)


globals().update(
    {
        f"Test_{form.bits}_{index}": type(
            f"Test_{form.bits}_{index}",
            (GptqTests,),
            {"scheme": "gptq", "form": form, "quant_config": form.config},
        )
        for index, form in enumerate(FORMATS)
    }
)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([2, 3, 4, 8]),
    group=st.sampled_from([16, 32, 64, 128, -1]),
    symmetric=st.booleans(),
    act_order=st.booleans(),
    version=st.sampled_from(["gptq", "gptq_v2"]),
    rows=st.integers(1, 3),
    columns=st.integers(1, 9),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_unpacking_is_bit_exact(
    bits: int,
    group: int,
    symmetric: bool,
    act_order: bool,
    version: str,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """Of the values that the writer had, and of those in the bits; a last group may be cut off."""
    form = Format(
        bits=bits,
        group=group,
        symmetric=symmetric,
        act_order=act_order,
        version=version,
        dtype=dtype,
    )
    weight_OI = torch.randn(rows * 32, columns * 32, generator=torch.Generator().manual_seed(seed))
    parts, values_OI = encode(weight_OI, form, seed)
    assert refuses(stored_matrix(parts, form.config)) is None
    weight = loaded(parts, form.config)
    assert torch.equal(weight.rows(torch.arange(rows * 32)), values_OI)
    planned = holds(stored_matrix(parts, form.config), "float32")
    assert (planned.layout, planned.shape) == (weight.layout, weight.shape)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_borrow_of_the_first_version_is_undone(bits: int) -> None:
    """gptqmodel subtracts one of whole words: a zero point of 0 takes from its neighbour."""
    form = Format(bits=bits, symmetric=False)
    parts, values_OI = encode(torch.rand(32, 64), form)
    assert not (values_OI < 0).any(), "all zero points are 0"
    assert torch.equal(loaded(parts, form.config).rows(torch.arange(32)), values_OI)


@pytest.mark.parametrize("name", sorted({name.partition(".")[0] for name in VECTORS}))
def test_values_are_those_that_gptqmodel_unpacks(name: str) -> None:
    stored = {n.partition(".")[2]: t for n, t in VECTORS.items() if n.partition(".")[0] == name}
    bits, group, symmetric, act_order, version = name.split("_", 4)
    form = Format(
        bits=int(bits),
        group=int(group),
        symmetric=symmetric == "1",
        act_order=act_order == "1",
        version=version,
    )
    values_OI = stored.pop("values")
    ours_OI = loaded(stored, form.config).rows(torch.arange(len(values_OI)))
    # It multiplies in float16.
    assert torch.equal(ours_OI.half().float(), values_OI)


@pytest.mark.parametrize(
    ("form", "layout"),
    [
        (Format(bits=2, group=64), "int4_g64"),
        (Format(bits=3, group=-1), "int4_g128"),
        (Format(bits=4, group=128), "int4_g128"),
        (Format(bits=4, group=16), "int4_g16"),
        (Format(bits=8, group=32), "int8_sym_g32"),
        (Format(bits=8, group=64, symmetric=False), "int8_g64"),
    ],
)
def test_it_is_held_in_a_layout_that_kernels_know(form: Format, layout: str) -> None:
    parts, _ = encode(torch.randn(32, 256), form)
    assert loaded(parts, form.config).layout == layout


def test_columns_in_another_order_are_a_permutation_around_the_packed_matrix() -> None:
    form = Format(act_order=True)
    weight = loaded(encode(torch.randn(32, 64), form)[0], form.config)
    assert isinstance(weight, Permuted) and isinstance(weight.inner, IntGroups)
    one, other = (
        loaded(encode(torch.randn(32, 64), form, seed)[0], form.config) for seed in (0, 1)
    )
    assert weight.concatenate([one]) is not None
    assert weight.concatenate([other]) is None, "their columns are ordered differently"


def test_a_module_may_have_settings_of_its_own() -> None:
    form = Format(bits=8, group=64)
    config = {
        **Format().config,
        "dynamic": {
            r"-:.*lm_head": {},
            r"+:.*layers\.0\..*down_proj": {"bits": 8, "group_size": 64},
            r".*down_proj": {"bits": 3},
        },
    }
    parts, _ = encode(torch.randn(32, 64), form)
    assert refuses(stored_matrix(parts, config, "model.layers.0.mlp.down_proj")) is None
    assert "3 bits" in str(refuses(stored_matrix(parts, config, "model.layers.1.mlp.down_proj")))
    assert "4 bits" in str(refuses(stored_matrix(parts, config, "model.layers.0.mlp.up_proj")))
    assert "not quantized" in str(refuses(stored_matrix(parts, config, "lm_head")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": 5}, "2, 3, 4 and 8 bits"),
        ({"bits": "4"}, "2, 3, 4 and 8 bits"),
        ({"bits": 8}, "8 bits"),
        ({"group_size": 64}, "groups of 64"),
        ({"group_size": 0}, "group_size"),
        ({"checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "awq"}, "quant_method"),
        ({"sym": "yes"}, "sym"),
        ({"dynamic": {"(": {}}}, "not a pattern"),
        ({"dynamic": {"+:(([a-z0-9._])+)+!": {"bits": 8}}}, "for ever"),
        ({"dynamic": {".*": 3}}, "object"),
        ({"dynamic": [1]}, "object"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_named(
    change: Mapping[str, Any], said: str
) -> None:
    parts, _ = encode(torch.randn(32, 64), Format())
    assert said in str(refuses(stored_matrix(parts, {**Format().config, **change})))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-300, 300) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from(["dynamic", "format", "meta", *Format().config]), _JSON, max_size=4
    ),
    shapes=st.dictionaries(
        st.sampled_from(["qweight", "qzeros", "scales", "g_idx"]),
        st.lists(st.integers(0, 300), max_size=3).map(tuple),
        max_size=2,
    ),
)
def test_any_config_and_headers_are_read_or_refused_with_a_sentence(
    changes: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    parts, _ = encode(torch.ones(32, 64), Format())
    stored = stored_matrix(parts, {**Format().config, **changes})
    for part, shape in shapes.items():
        stored.parts[part] = TensorInfo(stored.parts[part].dtype, shape, 0)  # type: ignore[index]
    reason = refuses(stored)
    if reason is None:
        assert holds(stored, "float32").shape == (32, 64) or shapes
        return
    assert len(reason.split()) > 3


def test_what_only_the_values_contradict_is_an_error() -> None:
    parts, _ = encode(torch.randn(32, 64), Format(act_order=True))
    parts["g_idx"][:] = 1
    with pytest.raises(CheckpointError, match="g_idx"):
        loaded(parts, Format(act_order=True).config)
    parts, _ = encode(torch.randn(32, 64), Format(bits=8, symmetric=False))
    with pytest.raises(CheckpointError, match="sym"):
        loaded(parts, Format(bits=8).config)
    parts, _ = encode(torch.randn(32, 64), Format())
    parts["scales"][0, 0] = float("inf")
    with pytest.raises(CheckpointError, match="scale"):
        loaded(parts, Format().config)


@alike
@pytest.mark.parametrize("config", [LLAMA, QWEN3_MOE], ids=["llama", "qwen3-moe"])
@pytest.mark.parametrize(
    "form", [Format(), Format(bits=8, act_order=True), Format(bits=3, symmetric=False)], ids=str
)
def test_a_checkpoint_gives_the_tokens_of_its_dense_twin(
    config: dict[str, Any], form: Format, tmp_path: Path
) -> None:
    """With a quantized head, and zero biases."""
    pytest.importorskip(f"inferno_{config['model_type']}")
    assert_same_tokens(toy_checkpoints(tmp_path, config, form), torch_only())


def test_kernels_compute_it_and_the_plan_names_what_they_refuse(tmp_path: Path) -> None:
    pytest.importorskip("inferno_llama")
    form, down_form = Format(), Format(bits=8, group=16, symmetric=False)
    packed, plain = toy_checkpoints(tmp_path, LLAMA, form, {"down_proj": down_form})
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"]["dynamic"] = {
        "+:.*down_proj": {"bits": 8, "group_size": 16, "sym": False}
    }
    (packed / "config.json").write_text(json.dumps(config))
    plan = plan_of(packed)
    assert {use.layout for use in plan.schemes} == {"int4_g32", "int8_g16", "float32"}
    if not any(use.layout == "int4_g32" for use in plan.kernels):
        pytest.skip("no kernels for int4_g32 here")
    assert any("int8_g16, slowly" in note for note in plan.notes)
    assert_near((packed, plain))


def test_a_matrix_that_no_bits_explain_is_not_told_to_install_this_package(tmp_path: Path) -> None:
    pytest.importorskip("inferno_llama")
    packed, _ = toy_checkpoints(tmp_path, LLAMA, Format())
    change_quant_config(packed, lambda config: config.update(bits=6))
    assert_refused(packed, "2, 3, 4 and 8 bits")


def test_the_config_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    """As autogptq wrote it, without quant_method."""
    pytest.importorskip("inferno_llama")
    packed, _ = toy_checkpoints(tmp_path, LLAMA, Format())
    config = json.loads((packed / "config.json").read_text())
    fields = config.pop("quantization_config")
    del fields["quant_method"]
    (packed / "config.json").write_text(json.dumps(config))
    (packed / "quantize_config.json").write_text(json.dumps(fields))
    assert "gptq" in {use.name for use in plan_of(packed).schemes}


def test_a_bias_that_the_model_lacks_must_be_zero(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    pytest.importorskip("inferno_llama")
    packed, _ = toy_checkpoints(tmp_path, LLAMA, Format())
    tensors = load_file(packed / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.bias"][3] = 1
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(InfernoError, match=r"layers.1.self_attn.q_proj.bias"):
        load_toy(packed, torch_only())


def test_the_catalog_has_one_scheme() -> None:
    assert [o.item.name for o in load_catalog().of("inferno_quant_schemes")].count("gptq") == 1
