"""Makes a chat request from another API's body. What a chat request honours or refuses then holds
for every API; errors and ignored names are those of the body that the client sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from inferno.errors import RequestError
from inferno.server.chat.conversation import Conversation, prepare
from inferno.server.chat.images import is_medium_part
from inferno.server.fields.schema import ChatRequest, GenerationRequest
from inferno.server.hosting.served_model import ServedModel
from inferno.server.http.parsing import Parsed, read

B = TypeVar("B", bound=GenerationRequest)
_ENGINE_HEADER = "x-data-parallel-rank"
_SESSION_HEADERS = ("session-id", "session_id", "x-session-id", "x-claude-code-session-id")


@frozen
class Translation:
    """A body as a chat request."""

    chat: Mapping[str, Any]
    """The JSON object of a chat request."""
    names: Mapping[str, str] = field(factory=dict)
    """The body's name for each field of the chat request that has another name there."""
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
        """Check the request, render and tokenize its messages. Raises RequestError.

        If the template refuses system messages within the conversation, which agents send, they
        become user messages."""
        messages = self.chat["messages"]
        with self.naming():
            try:
                conversation = await self._prepare(messages, model)
            except RequestError as error:
                changed = without_late_systems(messages)
                if error.param != "messages" or changed == messages:
                    raise
                try:
                    conversation = await self._prepare(changed, model)
                except RequestError:
                    raise error from None
        ignored = tuple(dict.fromkeys(map(self.name, conversation.prepared.ignored)))
        return evolve(conversation, prepared=evolve(conversation.prepared, ignored=ignored))

    async def _prepare(self, messages: Sequence[Any], model: ServedModel) -> Conversation:
        chat = {**self.chat, "messages": messages}
        parsed = read({k: v for k, v in chat.items() if v is not None}, ChatRequest)
        return await prepare(Parsed(parsed.body, (*self.ignored, *parsed.ignored)), model)

    def name(self, param: str) -> str:
        """Return the body's name for a field of the chat request."""
        # The longest beginning of the param, up to a dot or a bracket, that has another name.
        ends = (i for i in range(len(param), 0, -1) if param[i : i + 1] in ("", ".", "["))
        longest = next((param[:i] for i in ends if param[:i] in self.names), None)
        return param if longest is None else self.names[longest] + param[len(longest) :]

    def _renamed(self, error: RequestError) -> RequestError:
        if error.param is None or (name := self.name(error.param)) == error.param:
            return error
        cause = error.cause.replace(error.param, name)
        return RequestError(cause, error.remedy, param=name, code=error.code, detail=error.detail)


def with_headers(parsed: Parsed[B], headers: Mapping[str, str]) -> Parsed[B]:
    """Return a body with the session and the engine that its request names, in the body or in
    headers. Raises RequestError."""
    body, rank = parsed.body, headers.get(_ENGINE_HEADER)
    session = session_of(body, headers)
    if rank is None:
        return evolve(parsed, body=evolve(body, session_id=session))
    if not rank.isascii() or not rank.isdecimal() or len(rank) > 9:
        raise RequestError(
            f"the header {_ENGINE_HEADER} is {rank[:40]!r}", "Send the number of an engine, from 0."
        )
    return evolve(parsed, body=evolve(body, session_id=session, data_parallel_rank=int(rank)))


def session_of(body: Any, headers: Mapping[str, str]) -> str | None:
    """Return the session that a request names: clients put it in different places."""
    named = (body.session_id, body.prompt_cache_key, *map(headers.get, _SESSION_HEADERS))
    return next(filter(None, named), None)


def without_late_systems(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages with system messages only at the beginning. Later ones become user
    messages, and consecutive user messages are merged."""
    runs: list[list[Mapping[str, Any]]] = []
    late = False
    for message in messages:
        is_system = message["role"] in ("system", "developer")
        if late and is_system:
            message = {**message, "role": "user"}
        late = late or not is_system
        if runs and message["role"] == runs[-1][-1]["role"] == "user":
            runs[-1].append(message)
        else:
            runs.append([message])
    return [run[0] if len(run) == 1 else _merged(run) for run in runs]


def _merged(run: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if any(map(is_medium_part, (part for each in run for part in _listed(each["content"])))):
        return {**run[-1], "content": [part for each in run for part in _listed(each["content"])]}
    text = "\n\n".join(joined(message["content"] or "") for message in run)
    return {**run[-1], "content": text}


def _listed(content: str | Sequence[Any] | None) -> Sequence[Any]:
    """Return content as parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or ()


def joined(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a chat message's content."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def image_part(url: Any, param: str, detail: Any = None) -> dict[str, Any]:
    """Make a chat message's part of an image. `param` is the body's name for it."""
    given = {"url": url} | ({} if detail is None else {"detail": detail})
    return {"type": "image_url", "image_url": given, "param": param}


def base64_image(data: Any, param: str) -> dict[str, Any]:
    """The same for an image in base64. Raises RequestError."""
    if not isinstance(data, str):
        remedy = "Give the file's bytes in base64."
        raise RequestError(f"{param} is not a string", remedy, param=param)
    return image_part(f"data:image/png;base64,{data}", param)  # what it is, its bytes say


def audio_part(given: Any, param: str) -> dict[str, Any]:
    """Make a chat message's part of audio, as `input_audio` has it."""
    return {"type": "input_audio", "input_audio": given, "param": param}


def function_tool(
    name: str, description: Any, parameters: Any, strict: Any = None
) -> dict[str, Any]:
    """Make a tool of a chat request."""
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
    """Return a content part's text. Raises RequestError for a part that is not text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in kinds and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in kinds:
        raise RequestError(f"{param} has no text", "Give it a string in text.", param=param)
    shown = str(kind)[:40]
    raise RequestError(
        f"{param} has the unsupported type {shown!r}",
        f"Send parts of the type {' or '.join(kinds[:2])}.",
        param=param,
        code="unsupported_parameter",
    )
