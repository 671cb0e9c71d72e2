"""One request's constraint: a grammar, perhaps after reasoning that it does not restrict.

Suffixes: W words of 32 tokens, N a row's next token and drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from attrs import define, field

from inferno.constraints.grammar_time import GrammarTime, TimedMatcher
from inferno.contracts import (
    GrammarCompiler,
    MaskRequest,
    ReasoningMarkers,
    Vocabulary,
)

Mask = Any
"""Which tokens a row may draw: a numpy array (N, W) of int32, for the next token and one after each
draft. Bit i of word w is token 32 w + i; tokens past the array's end are not allowed."""


class Constraint(Protocol):
    """What a request's output must match. Follows the output that steps have committed."""

    @property
    def compiler(self) -> GrammarCompiler | None:
        """Fills the masks that `fill` asks for; None if it asks for none."""
        ...

    @property
    def time(self) -> GrammarTime | None:
        """What its grammar costs; None if it has none."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the output is complete: nothing but an end token can follow."""
        ...

    def ends(self, token_id: int | None) -> bool:
        """Whether this is an end token, which is no part of the text."""
        ...

    @property
    def error(self) -> str:
        """Why it gave up; empty if it did not. The request then ends with this error."""
        ...

    def accept(self, token_id: int) -> bool:
        """Add a token to the output. Returns False if it is not allowed."""
        ...

    def allows(self, token_id: int) -> bool | None:
        """Return whether the mask of the next token allows this one; None if only the mask can
        tell."""
        ...

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """Return how many leading drafts may follow."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens of the only text that can follow."""
        ...

    def fill(self, drafts: Sequence[int], mask_NW: Mask) -> MaskRequest | None:
        """Write the masks into an array of zeros; or return a request for the compiler, which fills
        those of all rows at once."""
        ...

    def finish_fill(self, mask_NW: Mask) -> None:
        """Change masks that the compiler has filled."""
        ...

    def fail(self, error: str) -> None:
        """Set the error."""
        ...


@define(eq=False)
class GrammarConstraint:
    """The output matches a grammar from its first token on."""

    matcher: TimedMatcher
    compiler: GrammarCompiler
    end: Sequence[int] = ()
    """The model's end tokens."""
    failure: str = ""

    @property
    def time(self) -> GrammarTime:
        return self.matcher.time

    @property
    def is_done(self) -> bool:
        return self.matcher.is_done

    def ends(self, token_id: int | None) -> bool:
        return token_id in self.end

    @property
    def error(self) -> str:
        return self.failure or self.matcher.error

    def fail(self, error: str) -> None:
        self.failure = error

    def accept(self, token_id: int) -> bool:
        return self.matcher.accept(token_id)

    def allows(self, token_id: int) -> bool | None:
        return _follows(self.matcher, token_id)

    def count_valid(self, token_ids: Sequence[int]) -> int:
        return self.matcher.count_valid(token_ids)

    def forced(self) -> Sequence[int]:
        return self.matcher.forced()

    def fill(self, drafts: Sequence[int], mask_NW: Mask) -> MaskRequest | None:
        return MaskRequest(self.matcher.inner, drafts, 0)

    def finish_fill(self, mask_NW: Mask) -> None:
        return None


def _follows(matcher: TimedMatcher, token_id: int) -> bool | None:
    forced = matcher.forced()
    if forced and forced[0] != token_id:
        return None  # of several ways to write forced text in tokens, a mask may allow one
    return matcher.count_valid((token_id,)) == 1


_MOST_GAPS = 2
"""Tokens of whitespace between the reasoning and the answer, which belong to neither."""


@define(eq=False)
class ReasoningConstraint:
    """The output matches a grammar after its reasoning, in which any token but an end token may be
    drawn. Without an opening marker at the beginning of the output there is no reasoning."""

    matcher: TimedMatcher
    compiler: GrammarCompiler
    markers: ReasoningMarkers
    marks: ReasoningTokens
    failure: str = ""
    _seen: bytes = b""
    """The end of the reasoning so far."""
    _opening: int = 0
    """How many tokens of the opening marker were drawn."""
    _gaps: int = 0
    _state: str = field(init=False)
    """begin, free, gap or grammar."""

    def __attrs_post_init__(self) -> None:
        self._state = "free" if self.markers.is_open else "begin"

    @property
    def time(self) -> GrammarTime:
        return self.matcher.time

    @property
    def is_done(self) -> bool:
        return self._state == "grammar" and self.matcher.is_done

    def ends(self, token_id: int | None) -> bool:
        return token_id in self.marks.vocabulary.end

    @property
    def error(self) -> str:
        return self.failure or self.matcher.error

    def fail(self, error: str) -> None:
        self.failure = error

    def accept(self, token_id: int) -> bool:
        marks = self.marks
        if self._state == "begin":
            if marks.open and token_id == marks.open[self._opening]:
                self._opening += 1
                if self._opening == len(marks.open):
                    self._state = "free"
                return True
            self._state = "gap"
        if self._state == "free":
            self._seen = (self._seen + marks.bytes_of(token_id))[-4 * len(marks.close) - 64 :]
            if self._seen.rstrip().endswith(marks.close):
                self._state = "gap"
            return True
        if self._state == "gap":
            if token_id in marks.gaps and self._gaps < _MOST_GAPS:
                if not self.matcher.count_valid([token_id]):
                    self._gaps += 1
                    return True
            self._state = "grammar"
        return self.matcher.accept(token_id)

    def allows(self, token_id: int) -> bool | None:
        if self._state == "grammar":
            return _follows(self.matcher, token_id)
        return self.marks.allows(self._seen, token_id) if self._state == "free" else None

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """Reasoning takes drafts up to its end, and the grammar its own."""
        if self._state == "grammar":
            return self.matcher.count_valid(token_ids)
        if self._state != "free":
            return 0
        seen, marks = self._seen, self.marks
        for count, token_id in enumerate(token_ids):
            if not marks.allows(seen, token_id):
                return count
            seen += marks.bytes_of(token_id)
            if seen.rstrip().endswith(marks.close):
                return count  # the token after it is the grammar's
        return len(token_ids)

    def forced(self) -> Sequence[int]:
        if self._state == "begin" and self._opening:
            return self.marks.open[self._opening :]
        return self.matcher.forced() if self._state == "grammar" else ()

    def fill(self, drafts: Sequence[int], mask_NW: Mask) -> MaskRequest | None:
        if self._state == "free":
            seen = self._seen
            for mask_W, token_id in zip(mask_NW, (*drafts, None), strict=True):
                self.marks.write(seen, mask_W)
                seen += self.marks.bytes_of(token_id) if token_id is not None else b""
            return None
        if self._state == "begin" and self._opening:
            set_bit(mask_NW[0], self.marks.open[self._opening])
            return None
        return MaskRequest(self.matcher.inner, drafts, 0)

    def finish_fill(self, mask_NW: Mask) -> None:
        if self._state == "begin" and not self._opening and self.marks.open:
            set_bit(mask_NW[0], self.marks.open[0])
        if self._state in ("begin", "gap") and self._gaps < _MOST_GAPS:
            for token_id in self.marks.gaps:
                set_bit(mask_NW[0], token_id)


@define(eq=False)
class ReasoningTokens:
    """Tokens of a model that matter for its reasoning's markers."""

    vocabulary: Vocabulary
    open: tuple[int, ...]
    close: bytes
    gaps: frozenset[int]
    """Tokens of line breaks only."""
    _straddling: dict[int, list[int]]
    """By the number of the closing marker's bytes before it: tokens that complete the marker and go
    on with text, so that the grammar would not see its beginning. By 0 also markers of calls, which
    would begin a call without the grammar."""
    _free_W: Mask
    """Allows every token but end tokens."""

    @classmethod
    def of(cls, vocabulary: Vocabulary, markers: ReasoningMarkers) -> ReasoningTokens:
        close, tokens = markers.close.encode(), vocabulary.tokens
        straddling: dict[int, list[int]] = {}
        for token_id, token in enumerate(tokens):
            if close[-1:] not in token:
                continue
            for known in range(len(close)):
                rest = close[known:]
                has_rest = token.startswith(rest) if known else rest in token
                if has_rest and token.partition(rest)[2].strip():
                    straddling.setdefault(known, []).append(token_id)
        for marker in markers.calls:
            if len(ids := vocabulary.encode(marker)) == 1:
                straddling.setdefault(0, []).append(ids[0])
        free_W = allow_all(len(tokens))
        for token_id in (*vocabulary.end, *straddling.get(0, ())):
            clear_bit(free_W, token_id)
        gaps = (i for i, t in enumerate(tokens) if t and not t.strip(b"\n") and len(t) <= 2)
        opening = tuple(vocabulary.encode(markers.open)) if markers.open else ()
        return cls(vocabulary, opening, close, frozenset(gaps), straddling, free_W)

    def bytes_of(self, token_id: int) -> bytes:
        tokens = self.vocabulary.tokens
        return tokens[token_id] if token_id < len(tokens) else b""

    def allows(self, seen: bytes, token_id: int) -> bool:
        """Whether reasoning that ends with `seen` may go on with this token."""
        if token_id in self.vocabulary.end:
            return False
        return not any(
            token_id in ids
            for known, ids in self._straddling.items()
            if not known or seen.endswith(self.close[:known])
        )

    def write(self, seen: bytes, mask_W: Mask) -> None:
        """Write the mask for reasoning that ends with `seen`."""
        mask_W[: len(self._free_W)] = self._free_W
        for known, ids in self._straddling.items():
            if known and seen.endswith(self.close[:known]):
                for token_id in ids:
                    clear_bit(mask_W, token_id)


def allow_all(num_tokens: int) -> Mask:
    """Return a mask of (W,) that allows that many tokens."""
    words = np.full(-(-num_tokens // 32), -1, np.int32)
    if num_tokens % 32:
        words[-1] = (1 << num_tokens % 32) - 1
    return words


def has_bit(mask_W: Mask, token_id: int) -> bool:
    """Return whether a mask allows a token. It allows none past its end."""
    word, bit = divmod(token_id, 32)
    return word < len(mask_W) and bool(mask_W[word] >> bit & 1)


def have_bits(mask_W: Mask, token_ids: Any) -> Any:
    """Return whether a mask allows each of these tokens, a numpy array."""
    words, bits = token_ids >> 5, token_ids & 31
    flags = mask_W[np.minimum(words, len(mask_W) - 1)] >> bits & 1
    return (words < len(mask_W)) & (flags == 1)


def set_bit(mask_W: Mask, token_id: int) -> None:
    mask_W.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)


def clear_bit(mask_W: Mask, token_id: int) -> None:
    if token_id // 32 < len(mask_W):
        mask_W.view(np.uint32)[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
