"""Unpacking is transformers', value by value; the weight computes with it.

Suffixes: O rows, I columns, G groups of 32 columns, T tokens.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from inferno.catalog import load_catalog
from inferno.contracts import TensorInfo
from inferno.errors import CheckpointError
from inferno.nn import Dense
from inferno_mxfp4.weight import Mxfp4, load

CONFIG = {"quant_method": "mxfp4"}


def random_parts(rows: int, groups: int, *, low: int = 120, high: int = 130, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "blocks": torch.randint(0, 256, (rows, groups, 16), dtype=torch.uint8, generator=generator),
        "scales": torch.randint(low, high, (rows, groups), dtype=torch.uint8, generator=generator),
    }


def reference(parts: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    found: Tensor = convert_moe_packed_tensors(parts["blocks"][None], parts["scales"][None], dtype=dtype)
    return found[0].T


def infos(parts: dict[str, Tensor]) -> dict[str, TensorInfo]:
    return {name: TensorInfo("uint8", tuple(part.shape), part.nbytes) for name, part in parts.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_those_of_transformers(dtype: torch.dtype) -> None:
    """For every exponent that bfloat16 can take with every value: all bytes occur."""
    parts = random_parts(64, 8, low=1, high=252)
    weight = load(parts, quant_config=CONFIG, dtype=str(dtype).removeprefix("torch."))
    assert weight.shape == (64, 256)
    assert torch.equal(weight.rows(torch.arange(64)), reference(parts, dtype))


def test_rows_of_a_view_are_those_of_a_copy() -> None:
    """Gate and up of an expert are every other row of what is stored."""
    parts = random_parts(6, 2)
    ours = load({name: part[1::2] for name, part in parts.items()}, quant_config=CONFIG, dtype="float32")
    assert torch.equal(ours.rows(torch.arange(3)), reference(parts, torch.float32)[1::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_multiplies_by_its_values(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferno_mxfp4.weight.CHUNK", 200)  # several chunks, the last one short
    parts = random_parts(7, 2)
    weight = load(parts, quant_config=CONFIG, dtype=str(dtype).removeprefix("torch."))
    x_TI = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    bias_O = torch.arange(7.0).to(dtype)
    expected_TO = x_TI.double() @ reference(parts, torch.float32).double().T + bias_O.double()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    y_TO = weight.matmul(x_TI, bias_O)
    assert y_TO.dtype == dtype
    largest = float(expected_TO.abs().max())
    torch.testing.assert_close(y_TO.double(), expected_TO, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("counts", [(1, 0, 3), (30, 2, 8)])
def test_experts_are_multiplied_group_by_group(counts: tuple[int, ...]) -> None:
    """A few rows, and more than are unpacked one by one."""
    parts = [random_parts(4, 2, seed=seed) for seed in range(3)]
    first, *others = (load(p, quant_config=CONFIG, dtype="float32") for p in parts)
    stacked = first.concatenate(others)
    assert isinstance(stacked, Mxfp4) and stacked.shape == (12, 64)
    x_NI = torch.randn(sum(counts), 64, generator=torch.Generator().manual_seed(2))
    starts_E1 = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
    each = [x @ reference(p, torch.float32).T for x, p in zip(x_NI.split(counts), parts, strict=True)]
    torch.testing.assert_close(stacked.grouped(x_NI, starts_E1), torch.cat(each))


def test_others_do_not_stack_with_it() -> None:
    weight = load(random_parts(2, 1), quant_config=CONFIG, dtype="float32")
    assert weight.concatenate([Dense(torch.zeros(2, 32))]) is None
    assert weight.concatenate([load(random_parts(2, 1), quant_config=CONFIG, dtype="bfloat16")]) is None


def test_it_owns_what_such_checkpoints_store_and_nothing_else() -> None:
    item = load_catalog().scheme("mxfp4-blocks").item
    parts = infos(random_parts(4, 2))
    assert item.owns(parts, CONFIG)
    assert not item.owns(parts, {}) and not item.owns({"weight": parts["blocks"]}, CONFIG)
    assert not item.owns({**parts, "zeros": parts["scales"]}, CONFIG)
    assert not item.owns({**parts, "scales": TensorInfo("float32", (4, 2), 32)}, CONFIG)


def test_planned_bytes_are_those_that_are_held() -> None:
    """4.25 bits a value."""
    parts = random_parts(8, 4)
    item = load_catalog().scheme("mxfp4-blocks").item
    held = sum(buffer.nbytes for buffer in item.load(parts, quant_config=CONFIG, dtype="float32").buffers())
    assert item.nbytes(infos(parts), "float32") == held == 8 * 4 * 32 * 4.25 / 8


@pytest.mark.parametrize(("blocks", "scales"), [((4, 2, 16), (4, 3)), ((4, 2, 8), (4, 2)), ((2, 4, 2, 16), (2, 4, 2))])
def test_parts_that_do_not_fit_are_refused(blocks: tuple[int, ...], scales: tuple[int, ...]) -> None:
    parts = {"blocks": torch.zeros(blocks, dtype=torch.uint8), "scales": torch.zeros(scales, dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match="MXFP4"):
        load(parts, quant_config=CONFIG, dtype="float32")
