"""Public layouts of integers: stacked, inside of wrappers, and of shapes without a kernel."""

from __future__ import annotations

import pytest
import torch

from inferno.nn import IntGroups, Permuted, Weight
from inferno_cpu.capturing import capture
from inferno_cpu.linear import stack
from inferno_cpu.packed import PackedPanels


def ints(rows: int, columns: int, group: int, *, bits: int = 4, zeros: bool = True) -> IntGroups:
    data = torch.randint(0, 256, (rows, columns * bits // 8), dtype=torch.uint8)
    scales = torch.rand(rows, columns // group).half() / 16
    points = torch.randint(0, 1 << bits, scales.shape).half() if zeros else None
    return IntGroups(data, scales, points, 8 if bits == 8 else 4, torch.float32)


@pytest.mark.parametrize("rows", [(16, 32, 48), (16, 7, 33)])
@pytest.mark.parametrize(("bits", "zeros"), [(4, True), (8, False), (8, True)])
def test_matrices_are_stacked_with_their_scales_and_zero_points(
    rows: tuple[int, ...], bits: int, zeros: bool
) -> None:
    weights = [ints(count, 256, 64, bits=bits, zeros=zeros) for count in rows]
    built = stack(*weights)
    assert isinstance(built, PackedPanels)
    wanted = torch.cat([w.rows(torch.arange(w.shape[0])) for w in weights])
    assert torch.equal(built.rows(torch.arange(sum(rows))), wanted)


@pytest.mark.parametrize("weight", [ints(16, 48, 16), ints(16, 64, 16, bits=8)], ids=str)
def test_shapes_without_a_kernel_are_left_to_torch(weight: Weight) -> None:
    assert stack(weight) is None


def test_a_permutation_around_a_packed_matrix_is_captured() -> None:
    inner = stack(ints(48, 256, 32))
    assert inner is not None
    weight, x_TI = Permuted(inner, torch.randperm(256)), torch.randn(3, 256)
    with torch.inference_mode():
        captured = capture()(lambda: weight.matmul(x_TI))
        for _ in range(3):
            x_TI.copy_(torch.randn(3, 256))
            captured.replay()
            assert torch.equal(captured.output, weight.matmul(x_TI))
