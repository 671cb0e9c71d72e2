"""A runner without a model: what stands in a cache slot is the text it was computed from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from attrs import define, field

from inferno.types import Sampled, Step


@define(eq=False)
class FakeRunner:
    """Computes steps as a model would and watches the scheduler while doing so.

    A slot of the cache holds the tokens up to its own: what keys and values depend on. Before a token is computed, all slots
    that it would attend to must hold its own prefix. The next token is a hash of all tokens before it, so every sequence
    has one right continuation: `continuation`.
    """

    block_size: int
    vocab_size: int = 4
    content: dict[int, tuple[int, ...]] = field(factory=dict)
    """Slot -> the tokens up to the one it was computed for."""
    computed: list[int] = field(factory=list)
    """Tokens of each step."""
    _tokens: dict[int, list[int]] = field(factory=dict)
    _tables: dict[int, dict[int, int]] = field(factory=dict)

    def run(self, step: Step) -> Sampled:
        for admission in step.admissions:
            self._tokens[admission.row] = list(admission.token_ids)
            self._tables[admission.row] = {}
        for row, place, block in step.grants:
            self._tables[row][place] = block
        rows = [s.row for s in step.slices]
        assert len(set(rows)) == len(rows), "a row has two slices"
        written: set[int] = set()
        for row, start, count, _ in step.slices:
            assert count > 0, "an empty slice"
            written |= self._write(row, start, start + count, written)
        drawn = [self._draw(s.row, s.start + s.num_tokens) for s in step.slices if s.samples]
        self.computed.append(step.num_tokens)
        return Sampled(drawn)

    def _write(self, row: int, start: int, stop: int, others: set[int]) -> set[int]:
        tokens = self._tokens[row]
        assert stop <= len(tokens), "a token is computed that is not known"
        for position in range(start):
            assert self.content.get(self._slot(row, position)) == tuple(tokens[: position + 1]), (
                f"row {row} would attend to what another text left at position {position}"
            )
        slots = {self._slot(row, position) for position in range(start, stop)}
        assert len(slots) == stop - start and not slots & others, "two tokens are stored in one slot"
        for position in range(start, stop):
            self.content[self._slot(row, position)] = tuple(tokens[: position + 1])
        return slots

    def _draw(self, row: int, stop: int) -> int:
        tokens = self._tokens[row]
        assert stop == len(tokens), "a token is drawn before all that are known were computed"
        tokens.append(next_token(tokens, self.vocab_size))
        return tokens[-1]

    def _slot(self, row: int, position: int) -> int:
        return self._tables[row][position // self.block_size] * self.block_size + position % self.block_size


def next_token(token_ids: Sequence[int], vocab_size: int) -> int:
    digest = hashlib.blake2b(repr(list(token_ids)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab_size


def continuation(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """What a request of this prompt must generate, whatever else runs."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab_size))
    return tokens[len(prompt) :]
