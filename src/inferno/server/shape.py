"""The format of an endpoint's answers: all that differs between chat and text completions once a
request is prepared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from attrs import define, field

from inferno.core.types import Logprobs

if TYPE_CHECKING:
    from inferno.llm import TextDelta
    from inferno.server.chunks import Chunks


@define
class Choice(ABC):
    """One output: what is not written yet, and how to write it."""

    index: int
    token_ids: list[int] = field(factory=list)
    logprobs: list[Logprobs] = field(factory=list)
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    finish: str | None = None
    stop_reason: str | int | None = None

    def take(self, delta: TextDelta) -> None:
        """Add what is new."""
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish, self.stop_reason = delta.finish_reason, delta.stop_reason

    @abstractmethod
    def opening(self, chunks: Chunks) -> bytes | None:
        """The stream's event before the first token, if there is one."""

    @abstractmethod
    def events(self, chunks: Chunks) -> Sequence[bytes]:
        """Encode what is new since the last call, and drop it to bound a stream's memory."""

    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """The whole output, for the answer's `choices`."""


C = TypeVar("C", bound=Choice)


class Shape(Generic[C]):
    """One answer in an endpoint's format."""

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    """The `object` of a whole answer."""
    chunk_kind: ClassVar[str]
    """The `object` of a stream's events."""

    choices: Sequence[C]
    """One per output, in order."""

    def extras(self) -> Mapping[str, Any]:
        """Additional members of a whole answer at this endpoint."""
        return {}

    def reasoning_tokens(self) -> int | None:
        """Number of reasoning tokens; None if reasoning cannot be separated from the output."""
        return None
