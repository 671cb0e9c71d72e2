"""Unpacking is transformers', value by value; the weight computes with it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from inferno.errors import CheckpointError
from inferno.testing import QuantSchemeTests, stored_matrix
from inferno_mxfp4 import refuses
from inferno_mxfp4.weight import load

CONFIG = {"quant_method": "mxfp4"}


def random_parts(
    rows: int, groups: int, *, low: int = 120, high: int = 130, seed: int = 0
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "blocks": torch.randint(0, 256, (rows, groups, 16), dtype=torch.uint8, generator=generator),
        "scales": torch.randint(low, high, (rows, groups), dtype=torch.uint8, generator=generator),
    }


def reference(parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    values: Tensor = convert_moe_packed_tensors(
        parts["blocks"][None], parts["scales"][None], dtype=dtype
    )
    return values[0].T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_those_of_transformers(dtype: torch.dtype) -> None:
    """For every exponent that bfloat16 can take with every value: all bytes occur."""
    parts = random_parts(64, 8, low=1, high=252)
    weight = load(stored_matrix(parts, CONFIG), parts, dtype=str(dtype).removeprefix("torch."))
    assert weight.shape == (64, 256)
    assert torch.equal(weight.rows(torch.arange(64)), reference(parts, dtype))


class TestMxfp4(QuantSchemeTests):
    scheme = "mxfp4-blocks"
    quant_config = CONFIG
    shapes = ((12, 64), (7, 256))

    @pytest.fixture(autouse=True)
    def several_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last one short."""
        monkeypatch.setattr("inferno_mxfp4.weight.CHUNK", 600)

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        return random_parts(rows, columns // 32, seed=seed)

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return reference(parts, torch.float32)


def test_it_reads_only_what_such_checkpoints_store() -> None:
    parts = random_parts(4, 2)
    assert refuses(stored_matrix(parts, CONFIG)) is None
    assert "quant_method" in str(refuses(stored_matrix(parts, {})))
    floats = {**parts, "scales": parts["scales"].float()}
    assert "uint8" in str(refuses(stored_matrix(floats, CONFIG)))


def test_a_value_takes_four_and_a_quarter_bits() -> None:
    parts = random_parts(8, 4)
    weight = load(stored_matrix(parts, CONFIG), parts, dtype="float32")
    assert sum(buffer.nbytes for buffer in weight.buffers()) == 8 * 4 * 32 * 4.25 / 8


@pytest.mark.parametrize(
    ("blocks", "scales"), [((4, 2, 16), (4, 3)), ((4, 2, 8), (4, 2)), ((2, 4, 2, 16), (2, 4, 2))]
)
def test_parts_that_do_not_fit_are_refused(
    blocks: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    parts = {
        "blocks": torch.zeros(blocks, dtype=torch.uint8),
        "scales": torch.zeros(scales, dtype=torch.uint8),
    }
    with pytest.raises(CheckpointError, match="MXFP4"):
        load(stored_matrix(parts, CONFIG), parts, dtype="float32")
