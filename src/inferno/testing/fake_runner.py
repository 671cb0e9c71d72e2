"""A runner without a model: a cache slot holds the tokens it was computed from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from attrs import define, field

from inferno.core.types import Sampled, StateCopy, Step

Tokens = tuple[int, ...]


@define(eq=False)
class FakeRunner:
    """Runs steps as a model would, and checks the scheduler.

    A cache slot holds the tokens up to its own, which its keys and values depend on. When a step's
    tokens are stored, all slots they attend to must hold their prefix: all earlier ones in the full
    group, and those within the window in the group of each of `windows`. A recurrent state holds
    all tokens it has seen, which must be those before a slice. The next token is a hash of all
    tokens before it, so each sequence has one correct continuation: `continuation`.
    """

    block_size: int
    vocab_size: int = 4
    windows: Sequence[int] = ()
    has_states: bool = False
    states: dict[int, Tokens] = field(factory=dict)
    """Slot -> tokens that its state has seen."""
    computed: list[int] = field(factory=list)
    """Tokens of each step."""
    _tokens: dict[int, list[int]] = field(factory=dict)
    _tables: dict[tuple[int, int], dict[int, int]] = field(factory=dict)
    """By group and row."""
    _contents: list[dict[int, Tokens]] = field(init=False)
    """By group: slot -> tokens up to its own."""

    def __attrs_post_init__(self) -> None:
        self._contents = [{} for _ in (None, *self.windows)]

    def content(self, block_id: int) -> Tokens:
        """Tokens up to the end of a block in the full group."""
        return self._contents[0][block_id * self.block_size + self.block_size - 1]

    def run(self, step: Step) -> Sampled:
        for new in step.new_sequences:
            self._tokens[new.row] = list(new.token_ids)
            for group in range(len(self._contents)):
                self._tables[group, new.row] = {}
        for group, row, index, block in step.block_updates:
            self._tables[group, row][index] = block
        self._copy(step.copies_before)
        rows = [s.row for s in step.slices]
        assert len(set(rows)) == len(rows), "a row has two slices"
        for row, start, count, _ in step.slices:
            assert count > 0, "an empty slice"
            assert start + count <= len(self._tokens[row]), "an unknown token is computed"
            if self.has_states:
                assert self.states[row] == tuple(self._tokens[row][:start]), (
                    f"row {row}'s state has not seen the tokens before its slice"
                )
                self.states[row] = tuple(self._tokens[row][: start + count])
        for group, window in enumerate((None, *self.windows)):
            self._store(step, group, window)
        self._copy(step.copies_after)
        drawn = [self._draw(s.row, s.start + s.num_tokens) for s in step.slices if s.samples]
        self.computed.append(step.num_tokens)
        return Sampled(drawn)

    def _copy(self, copies: tuple[StateCopy, ...]) -> None:
        sources = {c.target: () if c.source is None else self.states[c.source] for c in copies}
        assert not copies or self.has_states, "a state is copied, but no layer has one"
        assert not sources.keys() & {c.source for c in copies}, "a slot is copied and overwritten"
        assert len(sources) == len(copies), "two states are copied to one slot"
        self.states.update(sources)

    def _store(self, step: Step, group: int, window: int | None) -> None:
        content = self._contents[group]
        written: set[int] = set()
        for row, start, count, _ in step.slices:
            for position in range(start, start + count):
                slot = self._slot(group, row, position)
                assert slot not in written, "two tokens are stored in one slot"
                written.add(slot)
                content[slot] = tuple(self._tokens[row][: position + 1])
        for row, start, count, _ in step.slices:
            first = 0 if window is None else max(0, start - window + 1)
            for position in range(first, start + count):
                assert content.get(self._slot(group, row, position)) == tuple(
                    self._tokens[row][: position + 1]
                ), f"row {row} would attend to another prompt's token at position {position}"

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
