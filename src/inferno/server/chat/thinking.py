"""How a request asks for more or less reasoning, and which of that its chat template supports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.errors import RequestError
from inferno.server.http.errors import unsupported

if TYPE_CHECKING:
    from inferno.server.fields.schema import ChatRequest

SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates turn reasoning on and off."""


@frozen(kw_only=True)
class Thinking:
    """What a request says about reasoning."""

    wanted: bool | None = None
    effort: str | None = None
    budget: int | None = None
    """The most tokens of reasoning."""

    @classmethod
    def of(cls, data: ChatRequest) -> Thinking:
        """Read the request's `enable_thinking`, `thinking`, `reasoning_effort` and
        `thinking_token_budget`. Raises RequestError."""
        wanted, budget = data.enable_thinking, data.thinking_token_budget
        given = data.thinking
        if isinstance(given, bool):
            wanted = given
        elif given is not None:
            kind = given.get("type")
            if kind not in ("enabled", "disabled", "adaptive", "auto"):
                raise RequestError(
                    f"thinking has the unknown type {str(kind)[:40]!r}",
                    'Send {"type": "enabled"} or {"type": "disabled"}.',
                    param="thinking.type",
                )
            wanted = {"enabled": True, "disabled": False}.get(kind, wanted)
            tokens = given.get("budget_tokens")
            if tokens is not None and not (type(tokens) is int and tokens >= 0):
                raise RequestError(
                    f"thinking.budget_tokens is {str(tokens)[:40]!r}",
                    "Send an integer of at least 0.",
                    param="thinking.budget_tokens",
                )
            budget = tokens if budget is None else budget
        return cls(wanted=wanted, effort=data.reasoning_effort, budget=budget)

    def variables(self, known: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the template's variables, of those it knows, and the names of what has no effect.
        Raises RequestError if it does not know reasoning that is asked for."""
        chosen: dict[str, Any] = {}
        wanted, effort = self.wanted, self.effort
        if effort is not None and "reasoning_effort" in known:
            chosen["reasoning_effort"] = effort
        elif effort is not None and wanted is None:
            wanted = effort != "none"
        switches = [name for name in SWITCHES if name in known]
        if wanted is None:
            return chosen, ()
        if switches:
            return {**chosen, **dict.fromkeys(switches, wanted)}, ()
        if self.wanted is not None:
            return chosen, ("enable_thinking",)
        if effort != "none":
            raise unsupported(
                "reasoning_effort",
                "This model's chat template cannot switch reasoning: leave it out.",
            )
        return chosen, ()
