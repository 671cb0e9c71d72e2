"""Native quantizers: ggml's bytes on every instruction set, for every type, shape and number of
threads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inferno.testing import ggml_vectors
from inferno_cpu.layouts import QUANTIZED
from inferno_cpu.quantize import quantize


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("case", ggml_vectors.VECTORS)
def test_every_instruction_set_gives_ggmls_bytes(case: str) -> None:
    layout, _, weighted = case.partition(" ")
    (blocks,) = quantize(
        layout, ggml_vectors.matrix(), ggml_vectors.importance() if weighted else None
    )
    assert ggml_vectors.digest(blocks) == ggml_vectors.VECTORS[case][0]


@pytest.mark.parametrize("layout", sorted(QUANTIZED))
@pytest.mark.parametrize("rows, blocks", [(1, 1), (3, 1), (7, 3), (130, 2)])
def test_rows_do_not_depend_on_others(layout: str, rows: int, blocks: int) -> None:
    """Groups are computed sixteen at once: a row alone, and with others, on one thread or two."""
    columns = blocks * QUANTIZED[layout][1]
    random = torch.Generator().manual_seed(rows)
    weight_OI = torch.randn(rows, columns, generator=random).bfloat16()
    weighed = torch.rand(columns, generator=random)
    threads = torch.get_num_threads()
    try:
        for given in (None, weighed):
            torch.set_num_threads(2)
            whole = quantize(layout, weight_OI, given)
            torch.set_num_threads(1)
            for row in {0, rows // 2, rows - 1}:
                alone = quantize(layout, weight_OI[row : row + 1], given)
                assert all(
                    torch.equal(w[row : row + 1], a) for w, a in zip(whole, alone, strict=True)
                )
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("layout", sorted(QUANTIZED))
def test_types_are_read_as_their_values(layout: str) -> None:
    columns = 2 * QUANTIZED[layout][1]
    weight_OI = torch.randn(4, columns, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.bfloat16, torch.float16):
        rounded_OI = weight_OI.to(dtype)
        ours, wanted = (quantize(layout, w, None) for w in (rounded_OI, rounded_OI.float()))
        assert all(torch.equal(a, b) for a, b in zip(ours, wanted, strict=True))


def test_a_view_is_read_in_its_order() -> None:
    weight_OI = torch.randn(4, 512, generator=torch.Generator().manual_seed(0))
    (ours,) = quantize("q4_k", weight_OI[:, ::2], None)
    assert torch.equal(ours, quantize("q4_k", weight_OI[:, ::2].contiguous(), None)[0])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads mappings as Linux has them")
@pytest.mark.parametrize("layout", ["q4_k", "int4_g128"])
def test_a_quantized_matrix_is_unmapped_when_it_is_freed(layout: str) -> None:
    """A model's matrices are repacked one after the other: the system gets each one's memory."""
    data, *_ = quantize(layout, torch.randn(64, 256), None)
    address = data.data_ptr()

    def mapped() -> bool:
        lines = Path("/proc/self/maps").read_text().splitlines()
        ranges = ([int(n, 16) for n in line.split()[0].split("-")] for line in lines)
        return any(begin <= address < end for begin, end in ranges)

    assert mapped()
    del data
    assert not mapped()
