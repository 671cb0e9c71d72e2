"""Low-rank adapters beside matrices of any layout: y = W x + B A x (arXiv:2106.09685).

The adapters of all slots are in fixed memory, and a step has a slot for each token. Shapes do not
depend on which adapters are in a step, so that it can be captured.

Suffixes: T tokens, I inputs, O outputs, S slots, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, frozen
from torch import Tensor

from inferno.nn.weight import Weight
from inferno.ops.reference import Ops


@define(eq=False)
class StepSlots:
    """The slot of each token of a step, which every adapted matrix reads."""

    slots_T: Tensor
    """Resident, int64; -1: no adapter. Written before each step that has any."""
    active: bool = False
    """Whether the step has adapters. If not, no product of theirs is computed."""
    count: int = 0
    """Tokens of the step."""


class Adapted(Weight):
    """A matrix, or several stacked ones, and the adapters of each."""

    def __init__(
        self, inner: Weight, sizes: Sequence[int], step: StepSlots, down_SRI: Tensor, ops: Ops
    ) -> None:
        """`sizes` are the outputs of each stacked matrix. `down_SRI` holds the first matrices of
        their adapters one after the other, in R."""
        super().__init__()
        self.inner, self.shape, self.layout = inner, inner.shape, inner.layout
        self.source, self.sources, self.kernel = inner.source, inner.sources, inner.kernel
        self.sizes, self.step, self.ops = list(sizes), step, ops
        slots, ranks, _ = down_SRI.shape
        self.rank = ranks // len(self.sizes)
        self.down: Tensor
        self.register_buffer("down", down_SRI, persistent=False)
        for part, size in enumerate(self.sizes):
            up_SRO = down_SRI.new_zeros(slots, self.rank, size)
            self.register_buffer(f"up{part}", up_SRO, persistent=False)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        y_TO = self.inner.matmul(x_TI, bias_O)
        if not self.step.active:
            return y_TO
        flat_TI = x_TI.reshape(-1, self.shape[1])
        assert len(flat_TI) == self.step.count, "adapted layers see all tokens of a step"
        slots_T, ups = self.step.slots_T[: len(flat_TI)], map(self._up, range(len(self.sizes)))
        h_TR = self.ops.shrink(flat_TI, self.down, slots_T)
        flat_TO = y_TO.reshape(len(flat_TI), -1)
        return self.ops.expand(flat_TO, h_TR, tuple(ups), slots_T).view_as(y_TO)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        raise AssertionError("heads have no adapters")

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.inner.rows(ids_T)

    def _up(self, part: int) -> Tensor:
        return self.get_buffer(f"up{part}")

    def write(self, slot: int, part: int, pair: tuple[Tensor, Tensor] | None) -> None:
        """Write the adapter of one part: A (rank, inputs) and B (outputs, rank), its scale in B; or
        zeros."""
        first = part * self.rank
        down_RI, up_RO = self.down[slot, first : first + self.rank], self._up(part)[slot]
        down_RI.zero_()
        up_RO.zero_()
        if pair is not None:
            a_RI, b_OR = pair
            down_RI[: len(a_RI)] = a_RI
            up_RO[: len(a_RI)] = b_OR.T


@frozen(eq=False)
class Place:
    """Where the adapter of one of the checkpoint's matrices is."""

    weight: Adapted
    part: int

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of the matrix."""
        return self.weight.sizes[self.part], self.weight.shape[1]
