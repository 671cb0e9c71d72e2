"""GPTQ folders, written and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gptq_files import Format, decode
from safetensors.torch import load_file

from inferno.contracts import WriteOptions
from inferno.errors import UnsupportedError
from inferno.ops.rounding import Grid, by_inputs, nearest
from inferno.testing import TOY_SIZES, WriterTests, convert, skewed_model

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TOY_SIZES}


class TestFourBits(WriterTests):
    config = LLAMA
    writer = "gptq-int4"
    tolerance = 0.12


class TestEightBits(WriterTests):
    config = LLAMA
    writer = "gptq-int8"
    tolerance = 0.01


class TestActOrder(WriterTests):
    config = LLAMA
    writer = "gptq-int4"
    options = WriteOptions(group=32, act_order=True)
    tolerance = 0.12


class TestWholeRows(WriterTests):
    config = LLAMA
    writer = "gptq-int4"
    options = WriteOptions(group=-1)
    tolerance = 0.2


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return skewed_model(tmp_path_factory.mktemp("gptq"), LLAMA)


@pytest.mark.parametrize("act_order", [False, True])
def test_parts_are_those_of_gptqmodel(act_order: bool, source: Path, tmp_path: Path) -> None:
    """Decoded bit by bit, with its loops: the values that inferno reads."""
    text = tmp_path / "text.txt"
    text.write_text("abcdeab cabde eabc " * 40)
    options = WriteOptions(group=32, act_order=act_order)
    convert(str(source), "gptq-int4", tmp_path / "q", options, calibrate=text)
    convert(str(tmp_path / "q"), "safetensors", tmp_path / "v", WriteOptions(dtype="float32"))
    stored, values = (load_file(tmp_path / f / "model.safetensors") for f in "qv")
    path = "model.layers.1.mlp.down_proj"
    parts = {n: stored[f"{path}.{n}"] for n in ("qweight", "qzeros", "scales", "g_idx")}
    assert torch.equal(decode(parts, Format()), values[f"{path}.weight"])
    in_order = torch.arange(128, dtype=torch.int32) // 32
    assert torch.equal(parts["g_idx"], in_order) is not act_order


def test_rounding_by_inputs_lowers_the_error_of_products() -> None:
    generator = torch.Generator().manual_seed(0)
    x_NI = torch.randn(400, 96, generator=generator) @ torch.randn(96, 96, generator=generator)
    weight_OI = torch.randn(64, 96, generator=generator)
    gram_II = x_NI.T @ x_NI
    for grid in (Grid(4, 32, True), Grid(4, 96, False), Grid(8, 32, True)):
        plain = nearest(weight_OI, grid).values()
        for act_order in (False, True):
            rounded = by_inputs(weight_OI, gram_II, grid, act_order=act_order)
            errors = [(x_NI @ (w - weight_OI).T).norm() for w in (rounded.values(), plain)]
            assert errors[0] < 0.8 * errors[1]


def test_what_columns_of_large_inputs_lose_is_made_up_for() -> None:
    """As in trained models: a few channels are a hundred times the others, and not the first."""
    generator = torch.Generator().manual_seed(3)
    mixed_NI = torch.randn(600, 48, generator=generator) @ torch.randn(48, 128, generator=generator)
    mixed_NI[:, [101, 117, 127]] *= 100
    x_NI, unseen_NI = mixed_NI[:400], mixed_NI[400:]
    weight_OI = torch.randn(64, 128, generator=generator)
    rounded = by_inputs(weight_OI, x_NI.T @ x_NI, Grid(4, 32, True))
    assert torch.equal(rounded.groups_I, torch.arange(128, dtype=torch.int32) // 32)
    plain = nearest(weight_OI, Grid(4, 32, True))
    assert torch.equal(rounded.scales_OG, plain.scales_OG)
    errors = [(unseen_NI @ (r.values() - weight_OI).T).norm() for r in (rounded, plain)]
    assert errors[0] < 0.75 * errors[1]


def test_inputs_that_are_always_zero_and_too_few_inputs() -> None:
    weight_OI = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    x_NI = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))
    x_NI[:, 5] = 0
    rounded = by_inputs(weight_OI, x_NI.T @ x_NI, Grid(4, 32, True))
    assert rounded.values().isfinite().all() and (rounded.values()[:, 5] == 0).all()
    assert by_inputs(weight_OI, torch.zeros(64, 64), Grid(4, 32, True)).values().isfinite().all()


def test_a_matrix_of_zeros_and_one_of_large_values() -> None:
    for value in (0.0, 1e4):
        weight_OI = torch.full((32, 64), value)
        rounded = nearest(weight_OI, Grid(4, 32, True))
        assert torch.allclose(rounded.values(), weight_OI, rtol=0.1)


def test_matrices_that_do_not_fit_stay_dense(source: Path, tmp_path: Path) -> None:
    made = convert(str(source), "gptq-int4", tmp_path / "q", WriteOptions(group=128))
    stored = load_file(tmp_path / "q" / "model.safetensors")
    config = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    assert "model.layers.0.mlp.down_proj.qweight" in stored
    assert "model.layers.0.mlp.up_proj.weight" in stored
    assert any("12 matrices stay dense" in note for note in made.notes), made.notes
    assert any("up_proj" in pattern for pattern in config["dynamic"])


def test_a_model_of_which_nothing_fits_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="group of 4096"):
        convert(str(source), "gptq-int4", tmp_path / "q", WriteOptions(group=4096))
