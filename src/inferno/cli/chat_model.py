"""The model that answers in `inferno chat`: one in this process, or (`cli.remote`) a server's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from attrs import frozen

from inferno.cli.endings import Ending
from inferno.errors import OptionError

if TYPE_CHECKING:
    from inferno.cli.session import Run
    from inferno.contracts import Delta

Message = Mapping[str, Any]
"""A message as in OpenAI's API."""


class Piece(NamedTuple):
    """What an answer gained."""

    kind: Literal["content", "reasoning"]
    text: str


@frozen
class Usage:
    """Token counts of one answer, so far or in total."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    completion_tokens: int


@frozen
class Dropped:
    """How many of the oldest messages the prompt went without, because it would not fit."""

    messages: int


New = Piece | Usage | Ending | Dropped
"""What an answer brings."""


class ChatModel(Protocol):
    @property
    def name(self) -> str: ...

    def names(self) -> Sequence[str]:
        """The models that can be chosen. Raises InfernoError."""
        ...

    def choose(self, name: str) -> None:
        """Answer with that model from now on. Raises InfernoError."""
        ...

    def answer(
        self, messages: Sequence[Message], settings: Mapping[str, Any], thinking: bool | None
    ) -> Iterator[New]:
        """Generate the next message. `settings` are sampling parameters by their names. Yields what
        is new, the counts as far as they are known, and why it ended. Closing the iterator stops
        the answer. Raises InfernoError."""
        ...


class LocalModel:
    """A model in this process."""

    def __init__(self, run: Run, *, drops_oldest: bool = False) -> None:
        """`drops_oldest`: a conversation that does not fit loses its oldest turns, instead of
        being refused."""
        self._run, self._drops_oldest = run, drops_oldest
        self._format = run.preprocessor.chat_format()

    @property
    def name(self) -> str:
        return self._run.model_id

    def names(self) -> Sequence[str]:
        return (self.name,)

    def choose(self, name: str) -> None:
        if name != self.name:
            raise OptionError(
                f"{name[:80]!r} is not loaded", f"Start another chat: inferno chat {name[:80]}"
            )

    def answer(
        self, messages: Sequence[Message], settings: Mapping[str, Any], thinking: bool | None
    ) -> Iterator[New]:
        run = self._run
        if self._drops_oldest:
            count = len(messages)
            limit = run.params(**settings).max_tokens
            messages = run.fitting(messages, thinking, limit)
            yield Dropped(count - len(messages))
        prompt = run.chat_prompt(messages, thinking)
        form = self._format
        parser = form.parser(run.chat_text(messages, thinking), ()) if form is not None else None
        if form is not None and form.writes_special(tools=False):
            settings = {**settings, "skip_special_tokens": False}
        params = run.params(**settings)
        cached = count = 0
        text, delta = "", None
        for delta in run.llm.stream(prompt, params, lora=run.lora):
            text += delta.text
            cached, count = max(cached, delta.num_cached), count + len(delta.token_ids)
            yield Usage(len(prompt), cached, count)
            if parser is not None:
                yield from map(_piece, parser.feed(delta.text))
            elif delta.text:
                yield Piece("content", delta.text)
        if parser is not None:
            yield from map(_piece, parser.finish())
        yield run.ending(params, count, delta, text)


def _piece(delta: Delta) -> Piece:
    """Without tools there are no calls, only text."""
    return Piece("reasoning" if delta.kind == "reasoning" else "content", delta.text)
