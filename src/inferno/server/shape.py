"""How an endpoint writes its answers: all that differs between endpoints after preparation.

An endpoint has a `Shape`, with a `Choice` for each output. A stream's events are encoded from byte
templates (`Chunks`), ten times faster than a whole object for each token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec
from attrs import define, field

from inferno.core.types import Logprobs

if TYPE_CHECKING:
    from inferno.llm import TextDelta
    from inferno.server.schema import StreamOptions

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


class Chunks:
    """Encoder of one stream's events, which share an id, a time and a model."""

    def __init__(
        self,
        head: dict[str, Any],
        usage: Callable[..., object],
        options: StreamOptions | None,
        ignored: Sequence[str],
    ) -> None:
        """`usage(reasoning_tokens=None)` returns the usage object as of now."""
        self._include = bool(options and options.include_usage)
        self._continuous = self._include and bool(options and options.continuous_usage_stats)
        self._usage_now = usage
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._first = b',"x_inferno":' + encode({"ignored": ignored}) if ignored else b""

    def event(
        self, index: int, payload: bytes, *, finish: str | None = None, rest: bytes = b""
    ) -> bytes:
        """Encode an update of one choice. `payload` has the members before `finish_reason`, `rest`
        those after it."""
        first, self._first = self._first, b""
        return b'%b{"index":%d,%b,"finish_reason":%b%b}]%b%b}\n\n' % (
            self._head,
            index,
            payload,
            encode(finish),
            rest,
            self._usage(),
            first,
        )

    def end(self, *, reasoning_tokens: int | None = None) -> bytes:
        """Encode the usage, if requested, and the end marker."""
        if not self._include:
            return DONE
        return (
            self._head
            + b'],"usage":'
            + encode(self._usage_now(reasoning_tokens=reasoning_tokens))
            + b"}\n\n"
            + DONE
        )

    def _usage(self) -> bytes:
        if self._continuous:
            return b',"usage":' + encode(self._usage_now())
        return b',"usage":null' if self._include else b""


def members(**values: Any) -> bytes:
    """Encode JSON members, each preceded by a comma."""
    return b"".join(b',"%b":%b' % (name.encode(), encode(value)) for name, value in values.items())


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

    def event(
        self, chunks: Chunks, payload: bytes, *, finish: str | None, with_ids: bool | None
    ) -> bytes:
        """Encode `payload` as an event of this output, `with_ids` with the new token ids. Drops
        them and the logprobs."""
        rest = members(stop_reason=self.stop_reason) if finish else b""
        if with_ids:
            rest += members(token_ids=self.token_ids)
        self.token_ids, self.logprobs = [], []
        return chunks.event(self.index, payload, finish=finish, rest=rest)

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

    def whole(self, head: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a whole answer. `head` has the members that a stream's events have
        too."""
        return {**head, "choices": [each.entry() for each in self.choices], "usage": usage}

    def reasoning_tokens(self) -> int | None:
        """Number of reasoning tokens; None if reasoning cannot be separated from the output."""
        return None
