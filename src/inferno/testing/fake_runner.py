"""A runner without a model: a cache slot holds the tokens it was computed from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import torch
from attrs import define, field
from torch import Tensor

from inferno.constraints import NO_MASKS, Drafts, Masks
from inferno.contracts import Mover
from inferno.core.kvcache import CacheGroup, StateGroup, WindowGroup
from inferno.core.types import Copy, Move, Sampled, Slice, Step, Verified

Tokens = tuple[int, ...]


_SEEN: list[Tokens | None] = [None]
_NUMBERS: dict[Tokens | None, int] = {None: 0}
"""Numbers for tokens, by which a store keeps what slots hold."""


def number_of(tokens: Tokens | None) -> int:
    if tokens not in _NUMBERS:
        _NUMBERS[tokens] = len(_SEEN)
        _SEEN.append(tokens)
    return _NUMBERS[tokens]


@define(eq=False)
class FakeTicket:
    """A step of a `FakeRunner`. Its tokens are drawn by `draw`, so that a later step that was
    launched before would miss them."""

    runner: FakeRunner
    step: Step
    sampled: Sampled | None = None

    def draw(self, masks: Masks) -> None:
        assert self.sampled is None, "a step is drawn twice"
        self.runner.drawn += 1
        self.sampled = self.runner.draw(self.step)

    def result(self) -> Sampled:
        assert self.sampled is not None, "a result is taken before the draw"
        return self.sampled


@define(eq=False)
class FakeRunner:
    """Runs steps as a model would, and checks the scheduler.

    A cache slot holds the tokens up to its own, which its keys and values depend on. When a step's
    tokens are stored, all slots they attend to must hold their prefix: in each group of `windows`
    those within the window, or all. A recurrent state holds all tokens it has seen, which must be
    those before a slice. The next token is a hash of all tokens before it, so each sequence has one
    correct continuation: `continuation`. Drafts are what `propose` returns for the tokens so far
    and the number wanted. An embedding is the number of tokens it was computed from.
    """

    block_size: int
    vocab_size: int = 4
    windows: Sequence[int | None] = (None,)
    """The sliding window of each group with block tables; None: its layers attend to all tokens.
    The size of a chunk is negative."""
    has_states: bool = False
    """Whether the group after these has recurrent states."""
    num_rows: int = 0
    """Its slots before that of trial steps and those of drafts."""
    propose: Callable[[Sequence[int], int], Sequence[int]] = lambda token_ids, count: ()
    states: dict[int, Tokens] = field(factory=dict)
    """Slot -> tokens that its state has seen."""
    computed: list[int] = field(factory=list)
    """Tokens of each step."""
    launched: int = 0
    drawn: int = 0
    _mover: Mover | None = None
    _bytes: list[Tensor] = field(factory=list)
    """By group: what a store copies of each place."""
    _tokens: dict[int, list[int]] = field(factory=dict)
    _pooled: dict[int, int] = field(factory=dict)
    """By row: tokens computed for its embedding, -1 if it asks for none."""
    _drafts: dict[int, Tokens] = field(factory=dict)
    """By row: what the step in progress verifies."""
    _tables: dict[tuple[int, int], dict[int, int]] = field(factory=dict)
    """By group and row."""
    _contents: list[dict[int, Tokens]] = field(init=False)
    """By group: slot -> tokens up to its own."""

    def __attrs_post_init__(self) -> None:
        self._contents = [{} for _ in self.windows]

    def content(self, place: int) -> Tokens:
        """Tokens up to the end of the block at this place of the first group."""
        return self._contents[0][(place + 1) * self.block_size - 1]

    def keep(self, mover: Mover, num_places: Sequence[int]) -> None:
        """Let a store copy what places hold. `num_places` is for each group."""
        self._mover = mover
        self._bytes = [
            torch.zeros(count, self.part_bytes(group), dtype=torch.uint8)
            for group, count in enumerate(num_places)
        ]
        mover.register([[part[:, :3], part[:, 3:]] for part in self._bytes])

    def part_bytes(self, group: int) -> int:
        """Bytes of a group's part of a block: a number of 8 bytes for each slot, or a state."""
        return 8 * self.block_size if group < len(self.windows) else 8

    def _store_blocks(self, mover: Mover, step: Step) -> None:
        for placed in step.saves:
            for group, place in enumerate(placed.places):
                if place is not None:
                    numbers = [number_of(tokens) for tokens in self._held(group, place)]
                    self._bytes[group][place] = torch.tensor(numbers).view(torch.uint8)
        mover.save(step.saves)
        mover.load(step.loads)
        for placed in step.loads:
            for group, place in enumerate(placed.places):
                if place is not None:
                    numbers = self._bytes[group][place].clone().view(torch.int64).tolist()
                    self._hold(group, place, [_SEEN[number] for number in numbers])

    def _held(self, group: int, place: int) -> list[Tokens | None]:
        if group == len(self.windows):
            return [self.states.get(place)]
        first = place * self.block_size
        return [self._contents[group].get(first + i) for i in range(self.block_size)]

    def _hold(self, group: int, place: int, held: Sequence[Tokens | None]) -> None:
        for offset, tokens in enumerate(held):
            assert tokens is not None, "nothing was saved"
            if group == len(self.windows):
                self.states[place] = tokens
            else:
                self._contents[group][place * self.block_size + offset] = tokens

    def run(self, step: Step) -> Sampled:
        """Launch, draw, and return the results."""
        ticket = self.launch(step)
        ticket.draw(NO_MASKS)
        return ticket.result()

    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> FakeTicket:
        assert self.launched == self.drawn, "a step is launched before the one before it has drawn"
        self.launched += 1
        for new in step.new_sequences:
            self._tokens[new.row] = list(new.token_ids)
            self._pooled[new.row] = 0 if new.request.pooling else -1
            for group in range(len(self._contents)):
                self._tables[group, new.row] = {}
        for group, row, index, block in step.block_updates:
            self._tables[group, row][index] = block
        if self._mover is not None and (step.saves or step.loads):
            self._store_blocks(self._mover, step)
        for move in step.moves:
            self._move(move)
        self._copy(step.copies_before)
        rows = [s.row for s in step.slices]
        assert len(set(rows)) == len(rows), "a row has two slices"
        for piece in step.slices:
            self._check(piece, step)
        if cut is not None:
            drafts = cut({row: ids for row, ids in self._drafts.items() if ids})
            self._drafts = {row: tuple(drafts.get(row, ())) for row in rows}
        if self.has_states:
            for slot, seen in enumerate(self._drafted(rows), self.num_rows + 1):
                self.states[slot] = seen
        for group, window in enumerate(self.windows):
            self._store(step, group, window)
        self._copy(step.copies_after)
        self.computed.append(step.num_tokens)
        return FakeTicket(self, step)

    def _check(self, piece: Slice, step: Step) -> None:
        row, start, num_drafts = piece.row, piece.start, piece.num_drafts
        stop = start + piece.num_tokens
        tokens = self._tokens[row]
        assert piece.num_tokens > 0, "an empty slice"
        assert stop <= len(tokens), "an unknown token is computed"
        assert piece.samples or not num_drafts, "drafts are verified by the draw"
        self._drafts[row] = tuple(
            step.drafts[row]
            if row in step.drafts
            else self.propose(tokens, num_drafts)[:num_drafts]
            if num_drafts
            else ()
        )
        if self.has_states:
            assert self.states[row] == tuple(tokens[:start]), (
                f"row {row}'s state has not seen the tokens before its slice"
            )
            self.states[row] = tuple(tokens[:stop])

    def _drafted(self, rows: Sequence[int]) -> Iterator[Tokens]:
        """The tokens up to each draft of the step, in the order of its slices."""
        for row in rows:
            drafts = self._drafts[row]
            for count in range(len(drafts)):
                yield (*self.states[row], *drafts[: count + 1])

    def draw(self, step: Step) -> Sampled:
        token_ids: list[int] = []
        verified: dict[int, Verified] = {}
        embeddings: dict[int, tuple[float, ...]] = {}
        for piece in step.slices:
            row, stop = piece.row, piece.start + piece.num_tokens
            if self._pooled[row] >= 0:
                self._pooled[row] += piece.num_tokens
                if stop == len(self._tokens[row]):
                    embeddings[row] = (float(self._pooled[row]),)
            if not piece.samples:
                continue
            drafts = self._drafts[row]
            accepted = 0
            token_ids.append(self._draw(row, stop))
            while accepted < len(drafts) and drafts[accepted] == token_ids[-1]:
                accepted += 1
                token_ids.append(self._draw(row, stop + accepted))
            if piece.num_drafts:
                verified[row] = Verified(len(drafts), accepted)
        moved = tuple(dict.fromkeys(move.key for move in step.moves))
        return Sampled(token_ids, verified, embeddings=embeddings, moved=moved)

    def _move(self, move: Copy | Move) -> None:
        content, size = self._contents[move.group], self.block_size
        assert move.source is not None, "only states begin with zeros"
        for offset in range(size):
            if (tokens := content.get(move.source * size + offset)) is not None:
                content[move.target * size + offset] = tokens

    def _copy(self, copies: Sequence[Copy]) -> None:
        sources = {(copy.group, copy.source) for copy in copies}
        targets = {(copy.group, copy.target) for copy in copies}
        assert not sources & targets, "a place is copied and overwritten"
        assert len(targets) == len(copies), "two copies have one target"
        for copy in copies:
            if copy.group < len(self.windows):
                self._move(copy)
            else:
                assert self.has_states, "a state is copied, but no layer has one"
                self.states[copy.target] = () if copy.source is None else self.states[copy.source]

    def _store(self, step: Step, group: int, window: int | None) -> None:
        content = self._contents[group]
        written: set[int] = set()
        ranges: list[tuple[int, int, int, Tokens]] = []
        for piece in step.slices:
            row, start, stop = piece.row, piece.start, piece.start + piece.num_tokens
            for position in range(start, stop + piece.num_drafts):
                assert self._slot(group, row, position) >= 0, "a draft has no slot"
            drafts = self._drafts[row]
            tokens = (*self._tokens[row][:stop], *drafts)
            ranges.append((row, start, stop + len(drafts), tokens))
        for row, start, stop, tokens in ranges:
            for position in range(start, stop):
                slot = self._slot(group, row, position)
                assert slot not in written, "two tokens are stored in one slot"
                written.add(slot)
                content[slot] = tokens[: position + 1]
        for row, start, stop, tokens in ranges:
            first = 0 if window is None else max(0, start - window + 1)
            if window is not None and window < 0:
                first = start - start % -window
            for position in range(first, stop):
                assert content.get(self._slot(group, row, position)) == tokens[: position + 1], (
                    f"row {row} would attend to another prompt's token at position {position}"
                )

    def _draw(self, row: int, stop: int) -> int:
        tokens = self._tokens[row]
        assert stop == len(tokens), "a token is sampled before all known ones are computed"
        tokens.append(next_token(tokens, self.vocab_size))
        return tokens[-1]

    def _slot(self, group: int, row: int, position: int) -> int:
        return (
            self._tables[group, row][position // self.block_size] * self.block_size
            + position % self.block_size
        )


def next_token(token_ids: Sequence[int], vocab_size: int) -> int:
    digest = hashlib.blake2b(repr(list(token_ids)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab_size


def continuation(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The tokens that a request with this prompt must generate, whatever else runs."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab_size))
    return tokens[len(prompt) :]


def views_of(groups: Sequence[CacheGroup]) -> tuple[list[int | None], bool, int]:
    """What a `FakeRunner` must know of cache groups, of which those with states come last: the
    windows, whether there are states, and for how many rows."""
    paged = [group for group in groups if not isinstance(group, StateGroup)]
    windows = [
        group.window * (-1 if group.chunked else 1) if isinstance(group, WindowGroup) else None
        for group in paged
    ]
    rows = [group.snapshots.num_rows for group in groups if isinstance(group, StateGroup)]
    return windows, len(paged) < len(groups), max(rows, default=0)
