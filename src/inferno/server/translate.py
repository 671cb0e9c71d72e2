"""Makes a chat request of another API's body. What a chat request honours or refuses then holds for
every API; errors and ignored names are those of the body that the client sent."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from inferno.errors import RequestError
from inferno.server.conversation import Conversation, prepare
from inferno.server.model import ServedModel
from inferno.server.parsing import Parsed, read
from inferno.server.schema import ChatRequest


@frozen
class Translation:
    """A body as a chat request."""

    chat: Mapping[str, Any]
    """The JSON object of a chat request."""
    names: Mapping[str, str] = field(factory=dict)
    """The body's name for each field of the chat request that is called otherwise."""
    ignored: Sequence[str] = ()
    """Names of what has no effect in the body."""

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Make errors of the chat request name the body's fields."""
        try:
            yield
        except RequestError as error:
            raise self._renamed(error) from error

    async def prepare(self, model: ServedModel) -> Conversation:
        """Check the request, render and tokenize its messages. Raises RequestError."""
        with self.naming():
            given = {name: value for name, value in self.chat.items() if value is not None}
            parsed = read(given, ChatRequest)
            found = await prepare(Parsed(parsed.body, (*self.ignored, *parsed.ignored)), model)
        ignored = tuple(dict.fromkeys(map(self.name, found.prepared.ignored)))
        return evolve(found, prepared=evolve(found.prepared, ignored=ignored))

    def name(self, param: str) -> str:
        """Return the body's name for a field of the chat request."""
        known = [
            name for name in self.names if re.fullmatch(rf"{re.escape(name)}([.\[].*)?", param)
        ]
        longest = max(known, key=len, default=None)
        return param if longest is None else self.names[longest] + param[len(longest) :]

    def _renamed(self, error: RequestError) -> RequestError:
        if error.param is None or (name := self.name(error.param)) == error.param:
            return error
        cause = error.cause.replace(error.param, name)
        return RequestError(cause, error.remedy, param=name, code=error.code, detail=error.detail)


def function_tool(
    name: str, description: Any, parameters: Any, strict: Any = None
) -> dict[str, Any]:
    """Make a chat request's tool."""
    given = {"description": description, "parameters": parameters, "strict": strict}
    function = {"name": name} | {k: v for k, v in given.items() if v is not None}
    return {"type": "function", "function": function}


def function_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """Make a tool call of a chat request's message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def named_function(name: str) -> dict[str, Any]:
    """Make the `tool_choice` of one function."""
    return {"type": "function", "function": {"name": name}}


def text_of(part: Any, param: str, kinds: Sequence[str]) -> str:
    """Return a content part's text. Raises RequestError for what is not text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in kinds and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in kinds:
        raise RequestError(f"{param} has no text", "Give it a string in text.", param=param)
    shown = str(kind)[:40]
    raise RequestError(
        f"{param} has the type {shown!r}, but models here read text only",
        f"Send parts of the type {' or '.join(kinds[:2])}.",
        param=param,
        code="unsupported_parameter",
    )
