"""A runner without a model: what stands in a cache slot is the text it was computed from."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from attrs import define, field

from inferno.core.types import Sampled, Step


@define(eq=False)
class FakeRunner:
    """Computes steps as a model would and watches the scheduler while doing so.

    A slot of the cache holds the tokens up to its own: what keys and values depend on. When a
    step's tokens are stored, all slots that they attend to must hold their own prefix: all before
    them in the blocks, and in the window blocks of each of `windows` those that it reaches. The
    next token is a hash of all tokens before it, so every sequence has one right continuation:
    `continuation`.
    """

    block_size: int
    vocab_size: int = 4
    windows: Collection[int] = ()
    content: dict[int, tuple[int, ...]] = field(factory=dict)
    """Slot -> the tokens up to the one it was computed for."""
    computed: list[int] = field(factory=list)
    """Tokens of each step."""
    _tokens: dict[int, list[int]] = field(factory=dict)
    _tables: dict[tuple[int | None, int], dict[int, int]] = field(factory=dict)
    """By window (None: the blocks themselves) and row."""
    _contents: dict[int | None, dict[int, tuple[int, ...]]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._contents = {None: self.content, **{window: {} for window in self.windows}}

    def run(self, step: Step) -> Sampled:
        for admission in step.new_sequences:
            self._tokens[admission.row] = list(admission.token_ids)
            for window in self._contents:
                self._tables[window, admission.row] = {}
        for row, place, block in step.grants:
            self._tables[None, row][place] = block
        for window, row, place, block in step.window_grants:
            self._tables[window, row][place] = block
        rows = [s.row for s in step.slices]
        assert len(set(rows)) == len(rows), "a row has two slices"
        for row, start, count, _ in step.slices:
            assert count > 0, "an empty slice"
            assert start + count <= len(self._tokens[row]), "a token is computed that is not known"
        for window, content in self._contents.items():
            self._store(step, window, content)
        drawn = [self._draw(s.row, s.start + s.num_tokens) for s in step.slices if s.samples]
        self.computed.append(step.num_tokens)
        return Sampled(drawn)

    def _store(self, step: Step, window: int | None, content: dict[int, tuple[int, ...]]) -> None:
        written: set[int] = set()
        for row, start, count, _ in step.slices:
            for position in range(start, start + count):
                slot = self._slot(window, row, position)
                assert slot not in written, "two tokens are stored in one slot"
                written.add(slot)
                content[slot] = tuple(self._tokens[row][: position + 1])
        for row, start, count, _ in step.slices:
            for position in range(
                0 if window is None else max(0, start - window + 1), start + count
            ):
                assert content.get(self._slot(window, row, position)) == tuple(
                    self._tokens[row][: position + 1]
                ), f"row {row} would attend to what another text left at position {position}"

    def _draw(self, row: int, stop: int) -> int:
        tokens = self._tokens[row]
        assert stop == len(tokens), "a token is drawn before all that are known were computed"
        tokens.append(next_token(tokens, self.vocab_size))
        return tokens[-1]

    def _slot(self, window: int | None, row: int, position: int) -> int:
        return (
            self._tables[window, row][position // self.block_size] * self.block_size
            + position % self.block_size
        )


def next_token(token_ids: Sequence[int], vocab_size: int) -> int:
    digest = hashlib.blake2b(repr(list(token_ids)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab_size


def continuation(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """What a request of this prompt must generate, whatever else runs."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab_size))
    return tokens[len(prompt) :]
