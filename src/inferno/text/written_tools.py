"""Writes a conversation's tools, calls and results as text, for chat templates that have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferno.contracts import ToolWriter
from inferno.errors import RequestError
from inferno.text.messages import Message, TemplateNeeds, checked, convert_calls

_AS_TEXT = TemplateNeeds(text_arguments=True)


def has_tool_turns(messages: Sequence[Any]) -> bool:
    """Whether a conversation has calls or results."""
    return any(
        isinstance(each, Mapping) and (each.get("role") == "tool" or each.get("tool_calls"))
        for each in messages
    )


def with_written_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    writer: ToolWriter,
) -> list[Message]:
    """Return the messages with the tools in the first system message, calls in the assistant's
    content and results in user messages. Raises RequestError."""
    adapted: list[Message] = []
    after_result = False
    for i, message in enumerate(checked(messages)):
        is_result = message["role"] == "tool"
        if is_result:
            message = {"role": "user", "content": writer.result(message["content"])}
        elif message.get("tool_calls"):
            message = _with_written_calls(message, writer, i)
        if after_result and message["role"] == "user":
            # many templates refuse two user messages in a row
            adapted[-1]["content"] += "\n\n" + message["content"]
        else:
            adapted.append(message)
        after_result = is_result
    if not tools:
        return adapted
    for i, tool in enumerate(tools):
        _name(tool, f"tools[{i}]", "tools")
    return _with_instruction(adapted, writer.instruction(tools))


def _with_written_calls(message: Message, writer: ToolWriter, i: int) -> Message:
    convert_calls(message, _AS_TEXT, {}, i)
    lines = [message["content"]] if message["content"] else []
    for j, call in enumerate(message.pop("tool_calls")):
        name = _name(call, f"messages[{i}].tool_calls[{j}]", "messages")
        lines.append(writer.call(name, str(call["function"]["arguments"]).strip() or "{}"))
    return {**message, "content": "\n".join(lines)}


def _name(value: Any, where: str, param: str) -> str:
    """Return the name of a tool or of a call. Raises RequestError."""
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RequestError(f"{where} has no function.name", "Give it a name.", param=param)
    return name


def _with_instruction(messages: list[Message], instruction: str) -> list[Message]:
    first = messages[0] if messages else {}
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": instruction}, *messages]
    content = f"{first['content']}\n\n{instruction}" if first["content"] else instruction
    return [{**first, "content": content}, *messages[1:]]
