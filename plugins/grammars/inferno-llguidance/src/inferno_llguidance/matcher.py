"""Follows one output with llguidance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from attrs import define, field


@define(eq=False)
class LLGuidanceMatcher:
    """See contracts.Matcher."""

    inner: Any
    _forced: Sequence[int] | None = field(default=None, kw_only=True)
    """What `forced` has found since the last token: it is asked before and after a draw."""

    @property
    def is_done(self) -> bool:
        done: bool = self.inner.is_stopped()
        return done

    @property
    def error(self) -> str:
        return brief(self.inner.get_error()) if self.inner.is_error() else ""

    def accept(self, token_id: int) -> bool:
        self._forced = None
        accepted: bool = self.inner.consume_token(token_id)
        return accepted

    def count_valid(self, token_ids: Sequence[int]) -> int:
        count: int = self.inner.validate_tokens(list(token_ids))
        return count

    def forced(self) -> Sequence[int]:
        if self._forced is None:
            self._forced = tuple(self.inner.compute_ff_tokens())
        return self._forced


def brief(text: str) -> str:
    """Return a message in one line, without the state that llguidance appends to it."""
    match = re.search(r"^error: (.*)$", text, re.MULTILINE)  # of the library for regexes
    head = text.partition("<state>")[0].strip().partition("\n")[0]
    line = f"{head} {match[1]}" if match else head
    return line[:500] or "the grammar cannot be compiled"
