"""Why an answer ended, where that is not its own end, and what to do then."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from inferno.request.sampling_params import SamplingParams

MAKE_ROOM = (
    "/undo forgets the last message and its answer, /clear the whole conversation; a chat started "
    "with --context-overflow drop-oldest goes on without the oldest turns."
)
"""What to do about a full context."""
SHORTEN = "Send a shorter one, or start with a larger --max-model-len if the model allows it."
"""What to do about a first message that is too long."""

Kind = Literal["stop", "limit", "context"]


@frozen
class Ending:
    """Why an answer ended."""

    kind: Kind = "stop"
    """stop: by itself, or at a stop string. limit: at `max_tokens`. context: the context is
    full."""
    size: int | None = None
    """Tokens of the limit, or of the context; None if a server did not say."""
    is_empty: bool = False
    """Whether the model ended before it wrote anything."""

    @classmethod
    def of(
        cls,
        finish_reason: str | None,
        tokens: int,
        params: SamplingParams,
        max_model_len: int,
        *,
        is_empty: bool = False,
    ) -> Ending:
        """Return why an answer with this number of tokens ended."""
        if finish_reason != "length":
            return cls(is_empty=is_empty)
        if params.max_tokens is not None and tokens >= params.max_tokens:
            return cls("limit", params.max_tokens)
        return cls("context", max_model_len)

    def of_command(self, *, raw: bool) -> str:
        """Say it for a single prompt; an empty string if there is nothing to say."""
        if self.kind == "limit":
            return f"Cut after {self.size} tokens, the limit: a larger --max-tokens allows more."
        if self.kind == "context":
            return (
                f"Cut: the context of {self.size} tokens is full. A larger --max-model-len allows "
                "more, if the model does."
            )
        if self.is_empty and raw:
            return (
                "Nothing was generated: the model takes the prompt for complete. Without --raw it "
                "is asked through the chat template; --min-tokens 1 makes it go on."
            )
        if self.is_empty:
            return "Nothing was generated: the model ended at once. --min-tokens 1 makes it write."
        return ""

    def of_chat(self) -> str:
        """Say it in a conversation; an empty string if there is nothing to say."""
        if self.kind == "limit":
            return (
                f"Cut after {self.size} tokens, the limit: /set max_tokens {(self.size or 1) * 4} "
                "raises it, and /retry answers again."
            )
        if self.kind == "context":
            full = (
                "The context is full, or the server limits answers"
                if self.size is None
                else f"The context of {self.size} tokens is full"
            )
            return f"Cut: {full}. {MAKE_ROOM}"
        if self.is_empty:
            return (
                "The model ended at once, without an answer: /retry asks again, /set min_tokens 1 "
                "makes it write."
            )
        return ""
