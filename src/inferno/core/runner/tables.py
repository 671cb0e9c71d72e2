"""Resident arrays with a row per running sequence, so that a step carries only what is new. Knows
no model and no device.

Suffixes: T tokens of the step, S sequences of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, field

from inferno.contracts import Span
from inferno.core.types import Step

Array = np.ndarray[Any, Any]
_FIRST = np.broadcast_to(0, 1)  # the index of the only slice, read-only


@define(eq=False)
class StepArrays:
    """A step as arrays on the host."""

    token_ids: Array
    positions: Array
    query_starts: list[int]
    context_lens: list[int]
    rows: Array
    """Each sequence's row."""
    groups: list[tuple[Array, Array]]
    """For each cache group with block tables: each token's slot, and each sequence's blocks."""
    width: int
    """Number of blocks of every table."""
    last: Array
    """Index in T of each token whose logits are needed: each sampling slice's last one, and its
    drafts."""
    sampling_rows: list[int]
    next_positions: Array
    """Position of the first token that each sampling slice draws."""
    slice_starts: Array
    """Index in T of each slice's first token."""
    drafts: list[Sequence[int]] | None = None
    """Each sampling slice's drafts; None if no slice has any."""
    state_slots: Array | None = None
    """Where each sequence's recurrent states are, if there are drafts; else in the rows' slots."""
    follows: Sequence[bool] = ()
    """As in `Batch`."""

    @property
    def spans(self) -> list[Span]:
        """The tokens of each slice, drafts included."""
        begins = self.slice_starts
        counts = np.diff(begins, append=len(self.positions))
        rows = self.rows[np.searchsorted(self.query_starts, begins)]
        return list(map(Span, rows.tolist(), self.positions[begins].tolist(), counts.tolist()))

    def token_by_token(self) -> StepArrays:
        """Return the same step with each token as a sequence of its own, which drafts are already
        (`Tables.lay_out`). `rows` repeats theirs, and `slice_starts` stays. States have none."""
        owner = np.repeat(np.arange(len(self.rows)), np.diff(self.query_starts))
        return evolve(
            self,
            query_starts=list(range(len(owner) + 1)),
            context_lens=(self.positions + 1).tolist(),
            rows=self.rows[owner],
            state_slots=None,
            follows=(),
            groups=[(slots, tables[owner]) for slots, tables in self.groups],
        )


@define(eq=False)
class Tables:
    """All tokens and block tables of the running sequences, by row."""

    num_rows: int
    max_model_len: int
    block_size: int
    num_groups: int = 1
    """Cache groups with block tables, which come first in the plan."""
    token_ids: Array = field(init=False)
    owners: Array = field(init=False)
    """By row, the number of sequences that it has had."""
    block_ids: list[Array] = field(init=False)
    """By group. A row's entries before a group's window are stale but valid ids."""

    def __attrs_post_init__(self) -> None:
        # Their untouched pages cost no memory.
        self.token_ids = np.zeros((self.num_rows, self.max_model_len + 1), np.int64)
        self.owners = np.zeros(self.num_rows, np.int64)
        shape = self.num_rows, -(-self.max_model_len // self.block_size) + 1
        self.block_ids = [np.zeros(shape, np.int64) for _ in range(self.num_groups)]

    def update(self, step: Step) -> None:
        """Store the step's new rows and new blocks."""
        for new in step.new_sequences:
            self.token_ids[new.row, : len(new.token_ids)] = new.token_ids
            self.owners[new.row] += 1
        if not step.block_updates:
            return
        groups, rows, indices, blocks = np.array(step.block_updates, np.int64).T
        if self.num_groups == 1:
            self.block_ids[0][rows, indices] = blocks
            return
        for group, block_ids in enumerate(self.block_ids):
            of_group = groups == group
            block_ids[rows[of_group], indices[of_group]] = blocks[of_group]

    def lay_out(
        self, step: Step, drafts: Mapping[int, Sequence[int]] | None = None, shift: int = 0
    ) -> StepArrays:
        """Pack the step's slices, each followed by the row's drafts, if any. The token ids are
        those `shift` positions later.

        A draft is a sequence of one token, with the block table of its row. Attention then does the
        same arithmetic for it as in a step of that token alone."""
        drawing = [s.num_tokens for s in step.slices if s.samples]
        if not drafts and drawing.count(1) == len(step.slices):
            return (self._one_token if len(drawing) == 1 else self._one_token_each)(step, shift)
        columns = [(s.row, s.start, s.num_tokens, s.samples) for s in step.slices]
        # Kernels read dense arrays.
        rows, starts, counts, samples = np.array(columns, np.int64).T.copy()
        sampling = samples.astype(bool)
        sampling_rows, next_positions = rows[sampling].tolist(), (starts + counts)[sampling]
        given, slices, state_slots, follows = None, slice(None), None, ()
        if drafts:
            self._write_drafts(step, drafts)
            given = [drafts.get(row, ()) for row in sampling_rows]
            pieces = np.array([1 + len(drafts.get(row, ())) for row in rows.tolist()])
            slices = np.cumsum(pieces) - pieces
            of_slice = np.repeat(np.arange(len(rows)), pieces)
            index = np.arange(len(of_slice)) - slices[of_slice]  # 0: the known tokens
            rows, sampling, follows = rows[of_slice], sampling[of_slice], (index > 0).tolist()
            state_slots = np.where(index == 0, rows, self.num_rows + np.cumsum(index > 0))
            stops = (starts + counts)[of_slice]
            starts = np.where(index == 0, starts[of_slice], stops + index - 1)
            counts = np.where(index == 0, counts[of_slice], 1)
        ends = np.cumsum(counts)
        total = int(ends[-1])
        if total == len(rows):  # one token each
            owner, positions = np.arange(total), starts
        else:
            owner = np.repeat(np.arange(len(rows)), counts)
            positions = np.arange(total) - np.repeat(ends - counts, counts) + starts[owner]
        contexts = starts + counts
        width = -(-int(contexts.max()) // self.block_size)
        groups = self._located(rows, owner, positions, width)
        return StepArrays(
            token_ids=self.token_ids[rows[owner], positions + shift],
            positions=positions,
            query_starts=[0, *ends.tolist()],
            context_lens=contexts.tolist(),
            rows=rows,
            groups=groups,
            width=width,
            last=ends[sampling] - 1,
            sampling_rows=sampling_rows,
            next_positions=next_positions,
            slice_starts=(ends - counts)[slices],
            drafts=given,
            state_slots=state_slots,
            follows=follows,
        )

    def _one_token(self, step: Step, shift: int) -> StepArrays:
        """Pack one token as `_one_token_each` does, without arithmetic on arrays. Its blocks are a
        view of the tables: `Inputs.write` copies them before these change."""
        size, row, start = self.block_size, step.slices[0].row, step.slices[0].start
        stop, (index, offset) = start + 1, divmod(start, size)
        tables = [block_ids[row : row + 1, : index + 1] for block_ids in self.block_ids]
        return StepArrays(
            token_ids=self.token_ids[row, start + shift : stop + shift].copy(),
            groups=[(np.array([int(ids[0, index]) * size + offset]), ids) for ids in tables],
            positions=np.array([start]),
            query_starts=[0, 1],
            context_lens=[stop],
            rows=np.array([row]),
            width=index + 1,
            last=_FIRST,
            sampling_rows=[row],
            next_positions=np.array([stop]),
            slice_starts=_FIRST,
        )

    def _one_token_each(self, step: Step, shift: int) -> StepArrays:
        """Pack slices of one token, all of which draw, as in most steps. The result is that of
        `lay_out`, without a dozen operators of numpy, each of which takes a microsecond or more."""
        sampling_rows, starts = [s.row for s in step.slices], [s.start for s in step.slices]
        count = len(sampling_rows)
        rows, positions, each = np.array(sampling_rows), np.array(starts), np.arange(count)
        width = max(starts) // self.block_size + 1
        groups = self._located(rows, each, positions, width)
        return StepArrays(
            token_ids=self.token_ids[rows, positions + shift],
            positions=positions,
            query_starts=list(range(count + 1)),
            context_lens=[start + 1 for start in starts],
            rows=rows,
            groups=groups,
            width=width,
            last=each,
            sampling_rows=sampling_rows,
            next_positions=positions + 1,
            slice_starts=each,
        )

    def _located(
        self, rows: Array, owner: Array, positions: Array, width: int
    ) -> list[tuple[Array, Array]]:
        """Return, for each group, the tokens' slots and the tables of the rows, `width` blocks
        wide. `owner` is the index in `rows` of each token's row."""
        indices, offsets = np.divmod(positions, self.block_size)
        tables = [block_ids[rows, :width] for block_ids in self.block_ids]
        return [(table[owner, indices] * self.block_size + offsets, table) for table in tables]

    def _write_drafts(self, step: Step, drafts: Mapping[int, Sequence[int]]) -> None:
        for piece in step.slices:
            if ids := drafts.get(piece.row):
                stop = piece.start + piece.num_tokens
                self.token_ids[piece.row, stop : stop + len(ids)] = ids

    def append(self, arrays: StepArrays, token_ids: list[int]) -> None:
        """Append the tokens that a step drew, one for each sampling slice: they are pending in the
        next one."""
        if token_ids:
            self.token_ids[arrays.sampling_rows, arrays.next_positions] = token_ids

    def append_unknown(self, arrays: StepArrays) -> Array:
        """Append the tokens that a step draws on the device, which knows them before the host does:
        as -1 - row. Returns the rows' owners, for `learn`."""
        rows = np.array(arrays.sampling_rows)
        self.token_ids[rows, arrays.next_positions] = -1 - rows
        owners: Array = self.owners[rows]
        return owners

    def learn(self, arrays: StepArrays, owners: Array, token_ids: list[int]) -> None:
        """Replace what `append_unknown` appended, in rows that have the same owner as then."""
        rows = np.array(arrays.sampling_rows)
        same = self.owners[rows] == owners
        self.token_ids[rows[same], arrays.next_positions[same]] = np.array(token_ids)[same]

    def append_verified(self, arrays: StepArrays, token_ids: list[list[int]]) -> None:
        """Append several tokens per slice. They replace its drafts."""
        for row, position, ids in zip(
            arrays.sampling_rows, arrays.next_positions.tolist(), token_ids, strict=True
        ):
            ids = ids[: self.max_model_len + 1 - position]
            self.token_ids[row, position : position + len(ids)] = ids
