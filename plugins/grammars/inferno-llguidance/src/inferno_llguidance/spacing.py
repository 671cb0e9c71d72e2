"""Whitespace of JSON that its grammar cannot exclude: llguidance allows the same between any two
tokens of JSON. Nobody writes it before a comma or a colon, and a small model that has begun to can
hardly end; a line break after a colon neither.

A text is followed by an automaton of a few states, tabulated for every token of the vocabulary.

Suffixes: Q states, T tokens, W words of 32 tokens, N a row's next token and drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, frozen

from inferno.contracts import Vocabulary
from inferno_llguidance.matcher import LLGuidanceMatcher

BEFORE, COLON, STRING, ESCAPE, AFTER, GAP = range(6)
"""Before a value or a key; after a colon; in a string; after its backslash; in or after a number, a
word, a string or a bracket; and in whitespace after that: only a bracket may follow."""
_SPACE = b" \t\r\n"
Array = Any


def _automaton() -> tuple[Array, Array]:
    """Return by state and byte the next state, and whether the byte is out of place, (Q, 256)."""
    next_QB = np.full((6, 256), AFTER, np.uint8)
    wrong_QB = np.zeros((6, 256), bool)
    next_QB[:, list(b"{[,")] = BEFORE
    next_QB[:, ord(":")] = COLON
    next_QB[:, ord('"')] = STRING
    for state, after in ((BEFORE, BEFORE), (COLON, COLON), (AFTER, GAP), (GAP, GAP)):
        next_QB[state, list(_SPACE)] = after
    next_QB[[STRING, ESCAPE]] = STRING
    next_QB[STRING, ord('"')], next_QB[STRING, ord("\\")] = AFTER, ESCAPE
    wrong_QB[COLON, list(b"\t\r\n")] = True
    wrong_QB[GAP] = True
    wrong_QB[GAP, list(_SPACE + b"}]")] = False
    return next_QB, wrong_QB


@frozen(eq=False)
class SpacingTable:
    """The automaton's way over each token."""

    next_QT: Array
    allowed_QW: Array
    """Tokens that are in place, without those of `spaces`."""
    spaces_W: Array
    """Tokens of whitespace only, which may follow a value where a bracket may."""
    brackets: tuple[int, ...]
    """The tokens } and ]."""

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> SpacingTable:
        next_QB, wrong_QB = _automaton()
        tokens = [b"" if i in vocabulary.special else t for i, t in enumerate(vocabulary.tokens)]
        lengths = np.array([len(token) for token in tokens])
        order = np.argsort(-lengths, kind="stable")  # the longest first: a prefix is left to go on
        data = np.frombuffer(b"".join(tokens[i] for i in order), np.uint8)
        starts = np.cumsum(lengths[order]) - lengths[order]
        state_QT = np.repeat(np.arange(6, dtype=np.uint8)[:, None], len(tokens), axis=1)
        wrong_QT = np.zeros(state_QT.shape, bool)
        for position in range(int(lengths.max(initial=0))):
            count = int(np.count_nonzero(lengths > position))
            byte_T = data[starts[:count] + position]
            wrong_QT[:, :count] |= wrong_QB[state_QT[:, :count], byte_T]
            state_QT[:, :count] = next_QB[state_QT[:, :count], byte_T]
        next_QT, wrong_in_order_QT = np.empty_like(state_QT), wrong_QT
        next_QT[:, order] = state_QT
        wrong_QT = np.empty_like(wrong_in_order_QT)
        wrong_QT[:, order] = wrong_in_order_QT
        spaces_T = np.array([bool(t) and not t.strip(_SPACE) for t in tokens])
        # A token that ends in a gap, but began before it, may leave no way on.
        gap_QT = (next_QT == GAP) & ~(spaces_T & (np.arange(6) == GAP)[:, None])
        return cls(
            next_QT=next_QT,
            allowed_QW=_packed(~wrong_QT & ~gap_QT),
            spaces_W=_packed(spaces_T),
            brackets=tuple(i for i, token in enumerate(tokens) if token in (b"}", b"]")),
        )

    def allows(self, state: int, token_id: int) -> bool:
        return bool(self.allowed_QW[state, token_id // 32] >> token_id % 32 & 1)

    def is_space(self, token_id: int) -> bool:
        return bool(self.spaces_W[token_id // 32] >> token_id % 32 & 1)


def _packed(bits: Array) -> Array:
    """Pack the last axis of booleans into words."""
    missing = -bits.shape[-1] % 32
    padded = np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, missing)])
    return np.packbits(padded, axis=-1, bitorder="little").view(np.int32)


@define(eq=False)
class JsonMatcher(LLGuidanceMatcher):
    """Follows JSON, with whitespace where people write it."""

    table: SpacingTable
    _state: int = BEFORE

    def accept(self, token_id: int) -> bool:
        if not self._in_place(self._state, (), token_id) and self._goes_on():
            return False
        if not super().accept(token_id):
            return False
        self._state = int(self.table.next_QT[self._state, token_id])
        return True

    def _goes_on(self) -> bool:
        """Whether anything that is in place can follow. If not, as where a vocabulary has some
        brackets only together with others, what the grammar allows is drawn."""
        mask_W = np.frombuffer(self.inner.compute_bitmask(), np.int32)[: self.table.spaces_W.size]
        return bool((mask_W & self._allowed(self._state, mask_W)).any())

    def _allowed(self, state: int, mask_W: Array) -> Array:
        """Return the tokens in place where the grammar allows those of `mask_W`."""
        table = self.table
        if state == AFTER and any(mask_W[b // 32] >> b % 32 & 1 for b in table.brackets):
            return table.allowed_QW[state] | table.spaces_W
        return table.allowed_QW[state]

    def count_valid(self, token_ids: Sequence[int]) -> int:
        count, state = super().count_valid(token_ids), self._state
        for i, token_id in enumerate(token_ids[:count]):
            if not self._in_place(state, token_ids[:i], token_id):
                return i
            state = int(self.table.next_QT[state, token_id])
        return count

    def _in_place(self, state: int, before: Sequence[int], token_id: int) -> bool:
        if self.table.allows(state, token_id):
            return True
        if state != AFTER or not self.table.is_space(token_id):
            return False
        closed = ([*before, bracket] for bracket in self.table.brackets)
        return any(self.inner.validate_tokens(ids) == len(ids) for ids in closed)

    def restrict(self, drafts: Sequence[int], masks_NW: Array) -> None:
        """Take what is out of place out of the masks of the next token and after each draft."""
        state, words = self._state, self.table.spaces_W.size
        for mask_W, draft in zip(masks_NW[:, :words], (*drafts, None), strict=True):
            found_W = mask_W & self._allowed(state, mask_W)
            if found_W.any():
                mask_W[:] = found_W
            if draft is not None:
                state = int(self.table.next_QT[state, draft])
