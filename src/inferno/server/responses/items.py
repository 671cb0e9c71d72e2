"""Items of the Responses API: checked and completed as they arrive, and made into messages."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from inferno.errors import RequestError
from inferno.server.chat.translate import audio_part, function_call, image_part, joined, text_of
from inferno.server.http.errors import shorten

Item: TypeAlias = dict[str, Any]
"""A JSON object with a `type` and an `id`."""

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
"""Of ids, by type."""
_WITHOUT_EFFECT = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "computer_call",
    "computer_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
    "program",
    "program_output",
)
"""Types of what OpenAI's own tools did: no model here has these tools."""
_MAY_BE_EMPTY = ("arguments", "input")
_MAX_ID, _MAX_ITEMS = 128, 10_000
_TEXT = ("input_text", "output_text", "text")
_IMAGE, _AUDIO = "input_image", "input_audio"
_SEALED = "inferno1:"
"""Begins `encrypted_content`, which is the reasoning in base64: clients send back what they cannot
read, and some send nothing else."""


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def read_items(value: str | Sequence[Any], param: str = "input") -> list[Item]:
    """Check items and give each an id and a status. A string is a user's message. References stay
    as they are. Raises RequestError."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if len(value) > _MAX_ITEMS:
        raise RequestError(
            f"{param} has {len(value)} items", f"Send at most {_MAX_ITEMS}.", param=param
        )
    return [_item(each, f"{param}[{i}]") for i, each in enumerate(value)]


def without_effect(items: Iterable[Item], param: str = "input") -> list[str]:
    """Return the names of items that no model here can use."""
    names = [f"{param}[{i}]" for i, item in enumerate(items) if item["type"] in _WITHOUT_EFFECT]
    return names[:20]


def to_messages(items: Iterable[Item], instructions: str | None = None) -> list[dict[str, Any]]:
    """Make a chat request's messages from complete items.

    Reasoning, text and calls that follow each other are one message of the assistant. System
    messages at the beginning become one, since most templates have one place for them.
    """
    turns = _Turns()
    if instructions:
        turns.say("system", [{"type": "text", "text": instructions}])
    for item in items:
        kind = item["type"]
        if kind == "message":
            turns.say(item["role"], _said(item["content"]))
        elif kind == "reasoning":
            turns.think(reasoning_of(item))
        elif kind in ("function_call", "custom_tool_call"):
            turns.call(item)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            turns.result(item)
    return turns.messages


def reasoning_of(item: Item) -> str:
    """Return a reasoning item's text: its own, or that in `encrypted_content`, or the summary."""
    text = "".join(part["text"] for part in item.get("content") or ())
    return (
        text
        or unseal(item.get("encrypted_content"))
        or "\n".join(part["text"] for part in item.get("summary") or ())
    )


def seal(text: str) -> str:
    """Make `encrypted_content` from reasoning."""
    return _SEALED + base64.b64encode(text.encode()).decode()


def unseal(sealed: Any) -> str:
    """Return the reasoning in `encrypted_content`; empty if another server made it."""
    if not isinstance(sealed, str) or not sealed.startswith(_SEALED):
        return ""
    try:
        return base64.b64decode(sealed[len(_SEALED) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


class _Turns:
    """Messages, built item by item."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def say(self, role: str, parts: list[Item]) -> None:
        last = self.messages[-1] if self.messages else {}
        if role == "assistant":
            turn = self._turn("content")
            turn["content"] = _content(parts)
        elif role in ("system", "developer") and len(self.messages) == 1 and _is_system(last):
            last["content"] = "\n\n".join([joined(last["content"]), joined(_content(parts))])
        else:
            self.messages.append({"role": role, "content": _content(parts)})

    def think(self, text: str) -> None:
        if text:
            self._turn("content", "tool_calls", "reasoning")["reasoning"] = text

    def call(self, item: Item) -> None:
        arguments = item["arguments"] if item["type"] == "function_call" else item["input"]
        made = function_call(item["call_id"], item["name"], arguments)
        self._turn().setdefault("tool_calls", []).append(made)

    def result(self, item: Item) -> None:
        output = item["output"]
        content = output if isinstance(output, str) else _content(_said(output))
        self.messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})

    def _turn(self, *taken: str) -> dict[str, Any]:
        """Return the assistant's open message, or a new one if it has one of these fields."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or any(name in last for name in taken):
            last = {"role": "assistant"}
            self.messages.append(last)
        return last


def _is_system(message: dict[str, Any]) -> bool:
    return message.get("role") in ("system", "developer")


def _said(content: Sequence[Item]) -> list[Item]:
    """Return the parts of a chat message's content."""
    return [
        image_part(part.get("image_url"), part["param"], part.get("detail"))
        if part["type"] == _IMAGE
        else audio_part(part["input_audio"], part["param"])
        if part["type"] == _AUDIO
        else {"type": "text", "text": str(part["text"])}
        for part in content
    ]


def _content(parts: list[Item]) -> str | list[Item]:
    return str(parts[0]["text"]) if len(parts) == 1 and "text" in parts[0] else parts


# --- checks ---------------------------------------------------------------------------------------


def _item(raw: Any, param: str) -> Item:
    if not isinstance(raw, dict):
        raise RequestError(f"{param} is not an object", "Send items as objects.", param=param)
    kind = raw.get("type") or ("message" if "role" in raw else None)
    item = {**raw, "type": kind}
    if kind == "item_reference":
        _string(item, "id", param)
        return item
    if kind == "message":
        item = _message(item, param)
    elif kind == "reasoning":
        item["summary"] = _parts(item.get("summary") or [], f"{param}.summary", ("summary_text",))
        if item.get("content") is not None:
            kinds = ("reasoning_text", "text")
            item["content"] = _parts(item["content"], f"{param}.content", kinds)
    elif kind in ("function_call", "custom_tool_call"):
        for name in ("call_id", "name", "arguments" if kind == "function_call" else "input"):
            _string(item, name, param)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        _string(item, "call_id", param)
        if not isinstance(item.get("output"), str):
            item["output"] = _parts(item.get("output"), f"{param}.output", _TEXT, images=True)
    elif kind not in _WITHOUT_EFFECT:
        raise RequestError(
            f"{param} has the unsupported type {shorten(str(kind), 40)!r}",
            f"Use one of {', '.join(_PREFIXES)}, item_reference.",
            param=f"{param}.type",
            code="unsupported_parameter",
        )
    if not isinstance(item.get("id"), str) or not 0 < len(item["id"]) <= _MAX_ID:
        item["id"] = new_id(_PREFIXES.get(str(kind), "item"))
    if kind != "reasoning":
        item.setdefault("status", "completed")
    return item


def _message(item: Item, param: str) -> Item:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise RequestError(
            f"{param} has the unknown role {shorten(str(role), 40)!r}",
            "Use user, assistant, system or developer.",
            param=f"{param}.role",
        )
    content = item.get("content")
    kind = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, str):
        content = [{"type": kind, "text": content}]
    if role == "assistant":
        content = [_refusal(part) for part in content] if isinstance(content, list) else content
    parts = _parts(content, f"{param}.content", _TEXT, images=role == "user")
    for part in parts:
        if part["type"] == "text":
            part["type"] = kind
        if part["type"] == "output_text":
            part.setdefault("annotations", [])
    return {**item, "content": parts}


def _refusal(part: Any) -> Any:
    """A refusal in the history is what the assistant said."""
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "output_text", "text": part.get("refusal")}
    return part


def _parts(value: Any, param: str, kinds: Sequence[str], *, images: bool = False) -> list[Item]:
    if not isinstance(value, list):
        raise RequestError(
            f"{param} is neither a string nor a list", "Send a string or text parts.", param=param
        )
    return [_part(part, f"{param}[{i}]", kinds, images) for i, part in enumerate(value)]


def _part(part: Any, param: str, kinds: Sequence[str], images: bool) -> Item:
    if images and isinstance(part, dict) and part.get("type") == _IMAGE:
        if not isinstance(part.get("image_url"), str):
            cause = f"{param} has no image_url"
            raise RequestError(cause, "Give it a data: URL: files are not kept.", param=param)
        return {**part, "param": param}
    if images and isinstance(part, dict) and part.get("type") == _AUDIO:
        if not isinstance(part.get("input_audio"), dict):
            remedy = 'Give it {"data": "...", "format": "wav"}, in base64.'
            raise RequestError(f"{param} has no input_audio", remedy, param=param)
        return {**part, "param": param}
    # The text first: it checks that the part is an object.
    return {"text": text_of(part, param, kinds), **part}


def _string(item: Item, name: str, param: str) -> None:
    if not isinstance(item.get(name), str) or (not item[name] and name not in _MAY_BE_EMPTY):
        raise RequestError(
            f"{param}.{name} is not a string, or empty",
            f"Give {param} a string in {name}.",
            param=f"{param}.{name}",
        )
