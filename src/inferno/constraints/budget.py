"""A budget for reasoning: once its tokens are used up, the closing marker is the only text that can
follow.

Suffixes: W words of 32 tokens, N a row's next token and drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import define, field

from inferno.constraints.constraint import (
    Constraint,
    Mask,
    ReasoningTokens,
    allow_all,
    set_bit,
)
from inferno.constraints.grammar_time import GrammarTime
from inferno.contracts import GrammarCompiler, MaskRequest


@define(eq=False)
class BudgetConstraint:
    """Ends the reasoning that an output begins with, or that its prompt has opened, after `budget`
    tokens. Everything else is left to another constraint, if there is one."""

    inner: Constraint | None
    marks: ReasoningTokens
    close: Sequence[int]
    """The closing marker's tokens."""
    budget: int
    is_open: bool
    closers: Sequence[bytes] = ()
    """What else ends reasoning: markers of calls, where the format has calls in open reasoning."""
    _state: Literal["begin", "reasoning", "closing", "after"] = field(init=False)
    _count: int = 0
    """Tokens of reasoning; while closing, tokens of the marker."""
    _seen: bytes = b""
    _failure: str = ""

    def __attrs_post_init__(self) -> None:
        self._state = "begin"
        if self.is_open:
            self._begin()

    def _begin(self) -> None:
        self._count, self._seen = 0, b""
        self._state = "reasoning" if self.budget else "closing"

    @property
    def compiler(self) -> GrammarCompiler | None:
        return self.inner.compiler if self.inner is not None else None

    @property
    def time(self) -> GrammarTime | None:
        return self.inner.time if self.inner is not None else None

    @property
    def is_done(self) -> bool:
        return self.inner is not None and self.inner.is_done

    def ends(self, token_id: int | None) -> bool:
        return token_id in self.marks.vocabulary.end

    @property
    def error(self) -> str:
        return self._failure or (self.inner.error if self.inner is not None else "")

    def fail(self, error: str) -> None:
        self._failure = error

    def accept(self, token_id: int) -> bool:
        self._follow(token_id)
        return self.inner.accept(token_id) if self.inner is not None else True

    def _follow(self, token_id: int) -> None:
        marks = self.marks
        if self._state == "begin":
            # By its text: a model may write the marker in other tokens, or line breaks before it.
            opening = b"".join(map(marks.bytes_of, marks.open)).strip()
            self._seen = (self._seen + marks.bytes_of(token_id)).lstrip()
            if opening and self._seen.startswith(opening):
                self._begin()
            elif not opening or not opening.startswith(self._seen):
                self._state = "after"
        elif self._state == "reasoning":
            self._count += 1
            self._seen = (self._seen + marks.bytes_of(token_id))[-2 * len(marks.close) - 64 :]
            if any(end in self._seen for end in (marks.close, *self.closers)):
                self._state = "after"
            elif self._count >= self.budget:
                self._state, self._count = "closing", 0
        elif self._state == "closing":
            self._count += 1
            if self._count >= len(self.close):
                self._state = "after"

    def allows(self, token_id: int) -> bool | None:
        if self._state == "closing":
            return token_id == self.close[self._count]
        return self.inner.allows(token_id) if self.inner is not None else True

    def count_valid(self, token_ids: Sequence[int]) -> int:
        count = len(token_ids) if self.inner is None else self.inner.count_valid(token_ids)
        if self._state == "after":
            return count
        # Before the budget ends: the token after the last draft is still free.
        left = self.budget - self._count - 1 if self._state == "reasoning" else 0
        return min(count, max(0, left))

    def forced(self) -> Sequence[int]:
        if self._state == "closing":
            return self.close[self._count :]
        return self.inner.forced() if self.inner is not None else ()

    def fill(self, drafts: Sequence[int], mask_NW: Mask) -> MaskRequest | None:
        if self._state == "closing":
            set_bit(mask_NW[0], self.close[self._count])
            return None
        if self.inner is not None:
            return self.inner.fill(drafts, mask_NW)
        free_W = allow_all(len(self.marks.vocabulary.tokens))
        mask_NW[:, : len(free_W)] = free_W
        return None

    def finish_fill(self, mask_NW: Mask) -> None:
        if self._state != "closing" and self.inner is not None:
            self.inner.finish_fill(mask_NW)
