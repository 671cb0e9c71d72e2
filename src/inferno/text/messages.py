"""Converts messages to what a chat template expects. Templates differ: what each one takes is found
by rendering small conversations with it."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from attrs import frozen

from inferno.errors import RequestError

Message = dict[str, Any]
Render = Callable[[list[Message], list[dict[str, Any]] | None], str]
"""render(messages, tools) -> the prompt. Raises any exception."""

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names under which templates read an assistant's reasoning. Clients send the first two."""
MAX_DEPTH = 128
"""Nesting of a tool call's arguments that is accepted."""
_SHORT_ID = 9
_ALPHABET = string.ascii_letters + string.digits

_TEXT, _NAME, _KEY, _VALUE = "zqtext", "zqname", "zqkey", "zqvalue"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "d"}},
            "required": [_KEY],
        },
    },
}
_ANSWER: Message = {"role": "assistant", "content": "a"}
_NO_CALLS: tuple[bool, str | None] = (False, "")
"""Whether arguments are text, and no content, of a template that has no tool calls."""
_USER: Message = {"role": "user", "content": "u"}


@frozen(kw_only=True)
class TemplateNeeds:
    """What a template expects of messages."""

    empty_content: str | None = ""
    """Content of an assistant's message beside tool calls, if it has none."""
    text_arguments: bool = False
    """Whether a tool call's arguments are JSON text instead of an object."""
    short_ids: bool = False
    """Whether ids of tool calls must have nine letters and digits."""
    tool_names: bool = False
    """Whether a tool's message must have the tool's name."""
    parts: bool = False
    """Whether content is a list of parts instead of a string."""
    system: bool = True
    """Whether there may be a system message. If not, its text is put before the first user's."""
    developer: bool = False
    """Whether it knows the role `developer`. If not, that is `system`."""
    reasoning: tuple[str, ...] = ()
    """The names under which it reads reasoning."""
    reasoning_with_content: bool = True
    """Whether a message with tool calls may have both."""

    @classmethod
    def of(cls, source: str, render: Render) -> Self:
        """Find out what a template expects, by rendering with it."""
        probe = _Probe(render)
        parts = not probe.shows([_user(_TEXT)]) and probe.shows([_user(_parts(_TEXT))])
        system = [{"role": "system", "content": _parts(_TEXT) if parts else _TEXT}, _USER]
        short_ids = not probe.works(_turn()) and probe.works(_turn(id="abcdefg12"))
        id = "abcdefg12" if short_ids else "call_0123456789"
        text_arguments, empty = probe.arguments_and_content(id)
        form: dict[str, Any] = {"id": id, "text": text_arguments}
        tool_names = not probe.clean([*_turn(empty, **form), _result(id)]) and probe.clean(
            [*_turn(empty, **form), {**_result(id), "name": _NAME}]
        )
        both = [_USER, {**_turn("c", **form)[1], **dict.fromkeys(REASONING, "r")}]
        return cls(
            empty_content=empty,
            text_arguments=text_arguments,
            short_ids=short_ids,
            tool_names=tool_names,
            parts=parts,
            system=probe.shows(system) or not probe.works([_USER]),
            developer="developer" in source
            and probe.shows([{**system[0], "role": "developer"}, _USER]),
            reasoning=tuple(name for name in REASONING if name in source),
            reasoning_with_content=probe.works(both) or not probe.works(_turn("c", **form)),
        )


@frozen
class _Probe:
    render: Render

    def text(self, messages: list[Message]) -> str | None:
        """Return the prompt, or None if the template refuses."""
        try:
            return self.render(messages, [_TOOL])
        except Exception:  # templates are untrusted programs: they may raise anything
            return None

    def works(self, messages: list[Message]) -> bool:
        return self.text(messages) is not None

    def shows(self, messages: list[Message]) -> bool:
        return _TEXT in (self.text(messages) or "")

    def clean(self, messages: list[Message]) -> bool:
        """Whether the template takes the messages and writes no more None and null than for none
        of them."""
        prompt = self.text(messages)
        return prompt is not None and _nulls(prompt) <= _nulls(self.text([_USER]) or "")

    def arguments_and_content(self, id: str) -> tuple[bool, str | None]:
        """Find what the template renders correctly: whether tool-call arguments are passed as text,
        and whether missing content is None or an empty string."""
        best, chosen = 0, _NO_CALLS
        for empty in (None, ""):
            for text in (False, True):
                turn = _turn(empty, id=id, text=text)
                later = [*turn, _result(id)], [*turn, _result(id), _ANSWER, _USER]
                fitting = sum(self.clean(each) and self.has_call(each) for each in (turn, *later))
                if fitting > best:
                    best, chosen = fitting, (text, empty)
        return chosen

    def has_call(self, messages: list[Message]) -> bool:
        """Whether the prompt has the call, with arguments that are not Python and not JSON in
        JSON."""
        prompt = self.text(messages) or ""
        turn = prompt[prompt.rfind(_NAME) :]
        return _VALUE in turn and f"'{_KEY}':" not in turn and f'\\"{_KEY}' not in turn


def _nulls(text: str) -> int:
    return text.count("None") + text.count("null")


def _user(content: Any) -> Message:
    return {"role": "user", "content": content}


def _parts(text: str) -> list[Message]:
    return [{"type": "text", "text": text}]


def _turn(
    content: str | None = "c", *, id: str = "call_0123456789", text: bool = False
) -> list[Message]:
    arguments: Any = {_KEY: _VALUE}
    function = {"name": _NAME, "arguments": json.dumps(arguments) if text else arguments}
    call = {"id": id, "type": "function", "function": function}
    return [_USER, {"role": "assistant", "content": content, "tool_calls": [call]}]


def _result(id: str) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": "r"}


# --- messages -------------------------------------------------------------------------------------


def checked(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return copies of the messages with string content. Raises RequestError."""
    copies = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                "each message must be an object with a role",
                'Send {"role": ..., "content": ...}.',
                param="messages",
            )
        plain = dict(message)
        content = plain.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
            # Most templates take strings only. Parts are joined by line breaks, as in vLLM and
            # llama.cpp. Beside an image or audio they stay apart: the template writes
            # its place.
            if any(map(is_medium, content)):
                plain["content"] = [p if is_medium(p) else _parts(_part(p))[0] for p in content]
            else:
                plain["content"] = "\n".join(_part(p) for p in content)
        elif content is None:
            plain["content"] = ""
        copies.append(plain)
    return copies


def converted(messages: Sequence[Message], needs: TemplateNeeds) -> list[Message]:
    """Return checked messages as the template expects them. Raises RequestError."""
    names: dict[str, str] = {}
    adapted: list[Message] = []
    for i, message in enumerate(messages):
        plain = dict(message)
        if plain["role"] == "developer" and not needs.developer:
            # OpenAI's newer name; templates that do not know it would drop the message
            plain["role"] = "system"
        if plain.get("tool_calls"):
            convert_calls(plain, needs, names, i)
        elif plain["role"] == "tool":
            id = str(plain.get("tool_call_id") or "")
            if needs.tool_names and not plain.get("name") and id in names:
                plain["name"] = names[id]
            if needs.short_ids and id:
                plain["tool_call_id"] = _short(id)
        _convert_reasoning(plain, needs)
        adapted.append(plain)
    adapted = adapted if needs.system else _without_system(adapted)
    return [_with_parts(message) for message in adapted] if needs.parts else adapted


def convert_calls(plain: Message, needs: TemplateNeeds, names: dict[str, str], i: int) -> None:
    """Convert the calls of messages[i] in place, and note their names by id. Raises
    RequestError."""
    if not isinstance(plain["tool_calls"], Sequence):
        raise RequestError(
            f"messages[{i}].tool_calls must be a list", "Correct it.", param="messages"
        )
    calls = []
    for j, call in enumerate(plain["tool_calls"]):
        where = f"messages[{i}].tool_calls[{j}].function.arguments"
        changed = _tool_call(call, where, as_text=needs.text_arguments)
        if isinstance(changed, Mapping) and isinstance(id := changed.get("id"), str):
            names[id] = str((changed.get("function") or {}).get("name", ""))
            changed = {**changed, "id": _short(id)} if needs.short_ids else changed
        calls.append(changed)
    plain["tool_calls"] = calls
    plain["content"] = plain["content"] or needs.empty_content


def _convert_reasoning(plain: Message, needs: TemplateNeeds) -> None:
    given = next((plain[name] for name in REASONING if plain.get(name)), None)
    for name in REASONING:
        plain.pop(name, None)
    beside = plain.get("tool_calls") and plain["content"]
    if isinstance(given, str) and (needs.reasoning_with_content or not beside):
        plain.update(dict.fromkeys(needs.reasoning, given))


def _without_system(messages: list[Message]) -> list[Message]:
    texts = [m["content"] for m in messages if m["role"] == "system"]
    rest = [m for m in messages if m["role"] != "system"]
    first = next((i for i, m in enumerate(rest) if m["role"] == "user"), None)
    if not texts or first is None:
        return messages
    joined = rest[first]["content"]
    if isinstance(joined, str):
        joined = "\n\n".join([*texts, joined])
    else:  # parts, beside an image
        joined = [*_parts("\n\n".join(texts) + "\n\n"), *joined]
    return [*rest[:first], {**rest[first], "content": joined}, *rest[first + 1 :]]


def _with_parts(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": _parts(content)} if isinstance(content, str) else message


def is_medium(part: Any) -> bool:
    """Whether a part stands for an image or audio, which has been read."""
    return isinstance(part, Mapping) and dict(part) in ({"type": "image"}, {"type": "audio"})


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RequestError(
        f"message content of type {kind!r} is not supported",
        "Send text content only.",
        param="messages",
    )


def _tool_call(call: Any, where: str, *, as_text: bool) -> Any:
    """Return a call with its arguments as an object or as text. What is not a JSON object stays."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        parsed = _parsed(arguments, where)
        arguments = parsed if isinstance(parsed, dict) and not as_text else arguments
    else:
        _check_depth(arguments, where)
        arguments = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(text: str, where: str) -> Any:
    try:
        value = json.loads(text) if text.strip() else {}
    except ValueError:
        return None
    except RecursionError as error:
        raise _too_deep(where) from error
    _check_depth(value, where)
    return value


def _check_depth(value: Any, where: str) -> None:
    """Raise RequestError if a value is nested too deeply. Does not recurse."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            inner
            for each in level
            if isinstance(each, Mapping | list)
            for inner in (each.values() if isinstance(each, Mapping) else each)
        ]
    raise _too_deep(where)


def _too_deep(where: str) -> RequestError:
    return RequestError(
        f"{where} is nested more than {MAX_DEPTH} levels deep", "Send flatter JSON.", param=where
    )


def _short(id: str) -> str:
    """Return an id of nine letters and digits, the same for the same id."""
    if len(id) == _SHORT_ID and id.isalnum():
        return id
    digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:_SHORT_ID])
