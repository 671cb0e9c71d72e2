"""Low-rank adapters beside matrices of any layout: y = W x + B A x (arXiv:2106.09685).

The adapters of all slots are in fixed memory, and a step has a slot for each token. Shapes do not
depend on which adapters are in a step, so that it can be captured.

Suffixes: T tokens, I inputs, O outputs, S slots (of routed experts: each slot's experts), R rank,
N pairs of a token and one of its experts, E experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from attrs import define, frozen
from torch import Tensor, nn

from inferno.nn.cut import Share
from inferno.nn.weight import Weight, matrix_of_rows
from inferno.ops.reference import Ops


@define(eq=False)
class StepSlots:
    """The slot of each token of a step, which every adapted matrix reads."""

    slots_T: Tensor
    """Resident, int64; -1: no adapter. Written before each step that has any."""
    sampled_L: Tensor
    """The slot of each row whose logits are computed next."""
    active: bool = False
    """Whether the step has adapters. If not, no product of theirs is computed."""
    count: int = 0
    """Tokens of the step."""

    @classmethod
    def of(cls, most: int, device: str | torch.device = "cpu") -> StepSlots:
        """Return those of steps of up to `most` tokens."""
        slots_T = torch.full((most,), -1, dtype=torch.int64, device=device)
        return cls(slots_T, slots_T)

    @contextmanager
    def sampling(self, slots_L: Tensor) -> Iterator[None]:
        """Context in which logits are computed for rows of these slots."""
        before, self.sampled_L = self.sampled_L, slots_L
        try:
            yield
        finally:
            self.sampled_L = before

    @contextmanager
    def taking(self, tokens_N: Tensor) -> Iterator[None]:
        """Context in which layers see these tokens of the step only."""
        before = self.slots_T, self.count
        self.slots_T, self.count = self.slots_T[tokens_N], len(tokens_N)
        try:
            yield
        finally:
            self.slots_T, self.count = before

    def of_tokens(self, rows: int) -> Tensor:
        """Return the slots of a step's tokens, which are as many."""
        assert rows == self.count, "adapted layers see all tokens of a step"
        return self.slots_T[:rows]

    def of_sampled(self, rows: int) -> Tensor:
        """Return the slots of the rows whose logits are computed, which are as many."""
        slots_L = self.sampled_L[:rows]
        assert len(slots_L) == rows, "the step says whose logits are computed"
        return slots_L

    def of_experts(self, tokens_N: Tensor, starts_E1: Tensor) -> Tensor | None:
        """Return the slot of each pair, which are sorted by expert: slot · E + expert, or -1. None
        in a step without adapters."""
        if not self.active:
            return None
        slots_N, experts = self.slots_T[tokens_N], len(starts_E1) - 1
        expert_N = matrix_of_rows(starts_E1, len(tokens_N))
        return torch.where(slots_N < 0, slots_N, slots_N * experts + expert_N)


class Pairs(nn.Module):
    """The adapters of a matrix in each slot, or of several matrices that are stacked."""

    def __init__(
        self,
        sizes: Sequence[int],
        inputs: int,
        slots: int,
        rank: int,
        ops: Ops,
        like: Tensor,
        logits: bool = False,
    ) -> None:
        """`sizes` are the outputs of each stacked matrix. The memory has the dtype and device of
        `like`; the outputs, if they are `logits`, are float32."""
        super().__init__()
        self.sizes, self.inputs, self.rank, self.ops = list(sizes), inputs, rank, ops
        self.used: dict[tuple[int, int], int] = {}
        """The rank of what was written, by slot and part: the rest of a slot is zeros."""
        self.down: Tensor
        """The first matrices of the stacked ones, one after the other."""
        down_SRI = like.new_zeros(slots, len(sizes) * rank, inputs)
        self.register_buffer("down", down_SRI, persistent=False)
        for part, size in enumerate(sizes):
            up_SRO = like.new_zeros(slots, rank, size)
            up_SRO = up_SRO.float() if logits else up_SRO
            self.register_buffer(f"up{part}", up_SRO, persistent=False)

    def add(self, y_TO: Tensor, x_TI: Tensor, slots_T: Tensor) -> Tensor:
        """Return y plus the products of each row's adapters. May write into y."""
        h_TR = self.ops.shrink(x_TI, self.down, slots_T)
        ups = tuple(map(self.up, range(len(self.sizes))))
        return self.ops.expand(y_TO, h_TR, ups, slots_T)

    def add_rows(self, y_TI: Tensor, ids_T: Tensor, slots_T: Tensor) -> Tensor:
        """Return y, these rows of the matrix, plus the same rows of each one's adapter. May write
        into y."""
        h_TR = self.up(0)[slots_T.clamp(min=0), :, ids_T]
        h_TR = h_TR.masked_fill((slots_T < 0)[:, None], 0)
        return self.ops.expand(y_TI, h_TR, (self.down,), slots_T)

    def up(self, part: int) -> Tensor:
        """Return the second matrices of one of the stacked ones, (S, R, O)."""
        return self.get_buffer(f"up{part}")

    def write(self, slot: int, part: int, pair: tuple[Tensor, Tensor] | None) -> None:
        """Write the adapter of one part: A (rank, inputs) and B.T (rank, outputs), its scale in B;
        or zeros."""
        first = part * self.rank
        down_RI, up_RO = self.down[slot, first : first + self.rank], self.up(part)[slot]
        used = 0
        if pair is not None:
            a_RI, b_RO = pair
            used = len(a_RI)
            down_RI[:used], up_RO[:used] = a_RI, b_RO
        before = self.used.get((slot, part), 0)
        self.used[slot, part] = used
        if before > used:
            down_RI[used:before].zero_()
            up_RO[used:before].zero_()


class Adapted(Weight):
    """A matrix, or several stacked ones, and the adapters of each."""

    def __init__(self, inner: Weight, pairs: Pairs, step: StepSlots, sampled: bool = False) -> None:
        """If `sampled`, it multiplies the rows whose logits are computed, not a step's tokens."""
        super().__init__()
        self.inner, self.shape, self.layout = inner, inner.shape, inner.layout
        self.source, self.sources, self.kernel = inner.source, inner.sources, inner.kernel
        self.pairs, self.step, self.sampled = pairs, step, sampled

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        y_TO = self.inner.matmul(x_TI, bias_O)
        if not self.step.active:
            return y_TO
        flat_TI = x_TI.reshape(-1, self.shape[1])
        flat_TO, slots_T = y_TO.reshape(len(flat_TI), -1), self._slots(len(flat_TI))
        return self.pairs.add(flat_TO, flat_TI, slots_T).view_as(y_TO)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        y_LO = self.inner.matmul_float32(x_TI, bias_O)
        if not self.step.active:
            return y_LO
        return self.pairs.add(y_LO, x_TI, self.step.of_sampled(len(y_LO)))

    def rows(self, ids_T: Tensor) -> Tensor:
        y_TI = self.inner.rows(ids_T)
        if not self.step.active:
            return y_TI
        return self.pairs.add_rows(y_TI, ids_T, self.step.of_tokens(len(ids_T)))

    def _slots(self, rows: int) -> Tensor:
        return self.step.of_sampled(rows) if self.sampled else self.step.of_tokens(rows)


@frozen(eq=False)
class Place:
    """Where the adapter of one of the checkpoint's matrices is."""

    pairs: Pairs
    part: int
    expert: int = 0
    experts: int = 1
    """How many matrices a slot has there: one for each routed expert."""
    share: Share | None = None
    """What this rank has of the matrix, if several share it."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of the whole matrix."""
        if self.share is not None:
            return self.share.whole
        return self.pairs.sizes[self.part], self.pairs.inputs

    def write(self, slot: int, pair: tuple[Tensor, Tensor] | None) -> None:
        """As `Pairs.write`."""
        self.pairs.write(slot * self.experts + self.expert, self.part, pair)
