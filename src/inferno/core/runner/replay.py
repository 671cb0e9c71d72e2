"""Replays small decode steps without Python: captured once, then run again on the same memory.

With few tokens in a step, calling a few hundred operators costs more than a packed model's
arithmetic. A kernel provider (`contracts.KernelProvider.capture`) captures a step of padding rows,
which changes nothing; steps of that shape write their inputs to its memory and run it again.

Suffixes: T tokens of the step (one per sequence), M blocks, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from attrs import define, field, frozen
from torch import Tensor

from inferno.contracts import Capture, Captured, Uncaptured
from inferno.core.runner.tables import StepArrays
from inferno.nn.batch import Batch
from inferno.plan.backends import NOT_CAPTURED

MAX_TOKENS = 64
"""With more tokens, the operators take far longer than calling them."""

Compute = Callable[[Batch], Tensor]
"""Maps a batch to the logits of its tokens."""

log = logging.getLogger("inferno.runner")


@frozen(eq=False)
class Shape:
    """A captured step of T sequences with at most M blocks each, and its inputs."""

    batch: Batch
    captured: Captured


@define(eq=False)
class Replays:
    """The captured steps of one model."""

    compute: Compute
    capture: Capture
    block_size: int
    max_model_len: int
    windows: Sequence[int] = ()
    """The sliding windows that have a cache group."""
    trial_slot: int | None = None
    """The slot of padding rows' recurrent states, if the model has any."""
    prepare: Callable[[Batch], None] = lambda batch: None
    """Computes what depends on the context's length in Python, such as the size of tables."""
    refusal: str | None = None
    """Why steps are not captured."""
    _shapes: dict[tuple[int, int], Shape] = field(factory=dict)

    @property
    def shapes(self) -> set[tuple[int, int]]:
        """(sequences, blocks of a table) of each captured step."""
        return set(self._shapes)

    def run(self, arrays: StepArrays) -> Tensor | None:
        """Return the step's logits, valid until the next step. None if it must be computed in the
        usual way: it is large, or not every sequence computes and samples exactly one token."""
        tokens, blocks = arrays.tables.shape
        if self.refusal is not None or tokens > MAX_TOKENS:
            return None
        if not tokens == len(arrays.token_ids) == len(arrays.last):
            return None
        width = max(8, 1 << (blocks - 1).bit_length())
        if (shape := self._shapes.get((tokens, width))) is None:
            try:
                shape = self._captured(tokens, width)
            except Uncaptured as reason:
                self.refusal = str(reason)
                log.warning("%s: %s", NOT_CAPTURED, reason)
                return None
            self._shapes[tokens, width] = shape
        _write(shape.batch, arrays)
        shape.captured.replay()
        return shape.captured.output

    def _captured(self, tokens: int, width: int) -> Shape:
        batch = self._batch(tokens, width)
        self.prepare(batch)
        if not self._shapes:  # what is made on first use, such as a bias in float32, is no part
            self.compute(self._batch(tokens, width))
        return Shape(batch, self.capture(lambda: self.compute(batch)))

    def _batch(self, tokens: int, width: int) -> Batch:
        """Return a step of padding rows: it changes nothing."""
        longest = min(
            width * self.block_size, self.max_model_len
        )  # tables that depend on it are made for all its steps

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64)

        def slots(value: int) -> Tensor:
            return torch.full((tokens,), value)

        return Batch(
            token_ids_T=zeros(tokens),
            positions_T=zeros(tokens),
            slots_T=slots(-1),
            query_starts=range(tokens + 1),
            context_lens=[longest] * tokens,
            blocks_SM=zeros(tokens, width),
            block_size=self.block_size,
            query_starts_S1=torch.arange(tokens + 1, dtype=torch.int32),
            context_lens_S=torch.zeros(tokens, dtype=torch.int32),
            state_slots_S=None if self.trial_slot is None else slots(self.trial_slot),
            captured=True,
        ).with_windows({window: (slots(-1), zeros(tokens, width)) for window in self.windows})


def _write(batch: Batch, arrays: StepArrays) -> None:
    batch.token_ids_T.numpy()[:] = arrays.token_ids
    batch.positions_T.numpy()[:] = arrays.positions
    batch.context_lens_S.numpy()[:] = arrays.context_lens
    if batch.state_slots_S is not None:
        batch.state_slots_S.numpy()[:] = arrays.rows
    for window, slots, tables in (
        (None, arrays.slots, arrays.tables),
        *((window, *tables) for window, tables in arrays.windows.items()),
    ):
        group = batch.for_window(window)
        group.slots_T.numpy()[:] = slots
        group.blocks_SM.numpy()[:, : tables.shape[1]] = tables
