"""Resident arrays with a row per running sequence, so that a step carries only what is new. Knows
no model and no device.

Suffixes: T tokens of the step, S sequences of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, field

from inferno.core.types import Step

Array = np.ndarray[Any, Any]


@define(eq=False)
class StepArrays:
    """A step as arrays on the host."""

    token_ids: Array
    positions: Array
    query_starts: list[int]
    context_lens: list[int]
    rows: Array
    """Each sequence's row."""
    slots: Array
    """Each token's slot in the full group."""
    tables: Array
    """Each sequence's blocks in the full group."""
    windows: dict[int, tuple[Array, Array]]
    """Slots and tables of each sliding window's group."""
    last: Array
    """Index in T of each sampling slice's last token."""
    sampling_rows: list[int]
    next_positions: Array
    """Position of the token that each sampling slice draws."""

    def groups(self) -> list[tuple[int | None, tuple[Array, Array]]]:
        """Slots and tables of the full group, then of each sliding window's."""
        return [(None, (self.slots, self.tables)), *self.windows.items()]


@define(eq=False)
class Tables:
    """All tokens and block tables of the running sequences, by row."""

    num_rows: int
    max_model_len: int
    block_size: int
    windows: Sequence[int] = ()
    """The sliding windows that have a group, in the groups' order."""
    token_ids: Array = field(init=False)
    block_ids: list[Array] = field(init=False)
    """By group. A row's entries before its window are stale but valid ids."""

    def __attrs_post_init__(self) -> None:
        # Their untouched pages cost no memory.
        self.token_ids = np.zeros((self.num_rows, self.max_model_len + 1), np.int64)
        shape = self.num_rows, -(-self.max_model_len // self.block_size) + 1
        self.block_ids = [np.zeros(shape, np.int64) for _ in (None, *self.windows)]

    def update(self, step: Step) -> None:
        """Store the step's new rows and new blocks."""
        for new in step.new_sequences:
            self.token_ids[new.row, : len(new.token_ids)] = new.token_ids
        if not step.block_updates:
            return
        groups, rows, indices, blocks = np.array(step.block_updates, np.int64).T
        if len(self.block_ids) == 1:
            self.block_ids[0][rows, indices] = blocks
            return
        for group, block_ids in enumerate(self.block_ids):
            own = groups == group
            block_ids[rows[own], indices[own]] = blocks[own]

    def lay_out(self, step: Step) -> StepArrays:
        """Pack the step's slices."""
        rows, starts, counts, samples = np.array(
            step.slices, np.int64
        ).T.copy()  # kernels read dense arrays
        ends = np.cumsum(counts)
        total = int(ends[-1])
        if total == len(rows):  # one token each: the common case, without the repeats
            owner, positions = np.arange(total), starts
        else:
            owner = np.repeat(np.arange(len(rows)), counts)
            positions = np.arange(total) - np.repeat(ends - counts, counts) + starts[owner]
        contexts = starts + counts
        width = -(-int(contexts.max()) // self.block_size)
        indices, offsets = positions // self.block_size, positions % self.block_size

        def located(block_ids: Array) -> tuple[Array, Array]:
            tables = block_ids[rows, :width]
            return tables[owner, indices] * self.block_size + offsets, tables

        (slots, tables), *windows = map(located, self.block_ids)
        sampling = samples.astype(bool)
        return StepArrays(
            token_ids=self.token_ids[rows[owner], positions],
            positions=positions,
            query_starts=[0, *ends.tolist()],
            context_lens=contexts.tolist(),
            rows=rows,
            slots=slots,
            tables=tables,
            windows=dict(zip(self.windows, windows, strict=True)),
            last=ends[sampling] - 1,
            sampling_rows=rows[sampling].tolist(),
            next_positions=contexts[sampling],
        )

    def append(self, arrays: StepArrays, token_ids: list[int]) -> None:
        """Append the tokens that a step drew: they are pending in the next one."""
        if token_ids:
            self.token_ids[arrays.sampling_rows, arrays.next_positions] = token_ids
