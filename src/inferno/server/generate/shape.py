"""How an endpoint writes its answers: all that differs between endpoints after preparation.

An endpoint has a `Shape`, with a `Choice` for each output. `server.generate.pipeline` feeds the
choices and asks the shape for what to send: a whole body, or a stream's frames.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec
from attrs import define, field

from inferno.request.requests import Logprobs
from inferno.server.http import errors

if TYPE_CHECKING:
    from inferno.llm import TextDelta
    from inferno.server.generate.generation import Generation

encode = msgspec.json.encode


@define
class Choice:
    """One output: what is not written yet."""

    index: int
    token_ids: list[int] = field(factory=list)
    logprobs: list[Logprobs] = field(factory=list)
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    finish: str | None = None
    stop_reason: str | int | None = None
    weight_version: str = ""
    """The version of the weights that computed its last token."""

    def take(self, delta: TextDelta) -> None:
        """Add what is new."""
        self.weight_version = delta.weight_version
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish, self.stop_reason = delta.finish_reason, delta.stop_reason


C = TypeVar("C", bound=Choice)


class Shape(ABC, Generic[C]):
    """One answer in an endpoint's format."""

    media_type: ClassVar[str] = "text/event-stream"
    """Of a stream."""
    ping: ClassVar[bytes] = b": ping\n\n"
    """Sent during long silences of a stream; empty for nothing."""

    choices: Sequence[C]
    """One per output, in order."""
    generation: Generation
    """What runs: the answer's id and time, the request, the usage so far. Set by `open`."""

    def open(self, generation: Generation) -> None:
        """The request is admitted: called once, before anything is written."""
        self.generation = generation

    def begin(self) -> Iterable[bytes]:
        """Encode what a stream has before the first token."""
        return ()

    @abstractmethod
    def update(self, choice: C) -> Iterable[bytes]:
        """Encode what is new in a choice since the last call, and drop it to bound a stream's
        memory."""

    async def completed(self) -> None:
        """Every output has ended: called once, before `end` or `whole`."""
        return None

    @abstractmethod
    def end(self) -> Iterable[bytes]:
        """Encode the end of a stream whose outputs have ended."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""

    def close(self) -> None:
        """The request has ended, for any reason: called once if `open` was."""
        return None

    def error(self, error: BaseException) -> bytes:
        """Encode an error within a stream, whose status is already sent."""
        return errors.frame(error)

    def reasoning_tokens(self) -> int | None:
        """Number of reasoning tokens; None if reasoning cannot be separated from the output."""
        return None

    def usage(self) -> dict[str, object]:
        """OpenAI's usage object of the ended answer."""
        return self.generation.usage(reasoning_tokens=self.reasoning_tokens())
