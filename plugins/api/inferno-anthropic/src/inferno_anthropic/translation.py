"""Makes a chat request from a message's body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inferno.errors import RequestError
from inferno.server.api import (
    Parsed,
    ServedModel,
    Translation,
    base64_image,
    function_call,
    function_tool,
    image_part,
    named_function,
    shorten,
    text_of,
)
from inferno_anthropic.caching import Session
from inferno_anthropic.sampling import SAMPLING
from inferno_anthropic.schema import CountTokensRequest, MessagesRequest

_NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "enable_thinking": "thinking",
}
_SAME = ("model", "max_tokens", "stream", "priority", "cache_salt", "request_id")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_THINKING = ("enabled", "adaptive", "between_tools", "disabled")
_SERVER_BLOCKS = ("server_tool_use", "container_upload", "mcp_tool_use")
"""Blocks of Anthropic's own tools, besides their results."""


def translate(
    parsed: Parsed[MessagesRequest] | Parsed[CountTokensRequest],
    model: ServedModel,
    session: Session | None = None,
) -> Translation:
    """Make a chat request. Raises RequestError."""
    body = parsed.body
    messages, ignored = _messages(body)
    tools, names, ignored_tools = _tools(body.tools or ())
    thinking, ignored_thinking = _thinking(body, model)
    choice = _choice(body.tool_choice)
    chat: dict[str, Any] = {
        "messages": messages,
        "tools": tools or None,
        "response_format": _format(body.output_config or {}),
        # A choice without a tool that can be chosen asks for nothing.
        **(choice if tools else {}),
        **thinking,
        "chat_template_kwargs": body.chat_template_kwargs,
        "continue_final_message": _is_begun(messages) or None,
    }
    if isinstance(body, MessagesRequest):
        chat |= {name: getattr(body, name) for name in (*_SAME, *(p.name for p in SAMPLING))}
        chat |= {"stop": body.stop_sequences}
        if session is not None:
            chat |= {"session_id": session.name, "session_ttl": session.ttl}
    else:
        chat["model"] = body.model
    ignored = [*parsed.ignored, *ignored, *ignored_tools, *ignored_thinking]
    return Translation(chat, _NAMES | names, ignored)


# --- messages -------------------------------------------------------------------------------------


def _messages(body: CountTokensRequest) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the chat messages, and the blocks without effect."""
    messages: list[dict[str, Any]] = []
    ignored: list[str] = []
    if body.system:
        messages.append({"role": "system", "content": _text(body.system, "system", ignored)})
    for i, message in enumerate(body.messages):
        param = f"messages[{i}]"
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise RequestError(
                f"{param} has the unknown role {shorten(str(role), 40)!r}",
                "Use user or assistant.",
                param=f"{param}.role",
            )
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif not isinstance(content, list):
            raise RequestError(
                f"{param}.content is neither a string nor a list",
                "Send a string or content blocks.",
                param=f"{param}.content",
            )
        elif role == "assistant":
            messages.append(_assistant(content, f"{param}.content", ignored))
        else:
            messages += _user(role, content, f"{param}.content", ignored)
    return messages, ignored[:20]


def _is_begun(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last message is the beginning of the answer."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and bool(last.get("content")) and len(last) == 2


def _user(role: str, content: list[Any], param: str, ignored: list[str]) -> list[dict[str, Any]]:
    """Results of tools are separate messages, before what the user says."""
    results, texts = [], []
    for i, block in enumerate(content):
        where = f"{param}[{i}]"
        if _kind(block) == "tool_result":
            results.append(_result(block, where, ignored))
        elif (part := _part(block, where, ignored)) is not None:
            texts.append(part)
    turn = [{"role": role, "content": _joined(texts)}] if texts or not results else []
    return [*results, *turn]


def _assistant(content: list[Any], param: str, ignored: list[str]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(content):
        where, kind = f"{param}[{i}]", _kind(block)
        if kind == "thinking":
            thoughts.append(_string(block, "thinking", where, empty=True))
        elif kind == "tool_use":
            given = block.get("input")
            if not isinstance(given, dict):
                raise RequestError(
                    f"{where}.input is not an object",
                    "Send the call's arguments as an object.",
                    param=f"{where}.input",
                )
            arguments = msgspec.json.encode(given).decode()
            id, name = (_string(block, key, where) for key in ("id", "name"))
            calls.append(function_call(id, name, arguments))
        elif (text := _block(block, where, ignored)) is not None:
            texts.append({"type": "text", "text": text})
    message: dict[str, Any] = {"role": "assistant"}
    if texts or not calls:
        message["content"] = _joined(texts)
    if thoughts and (thought := "".join(thoughts)):
        message["reasoning"] = thought
    return message | ({"tool_calls": calls} if calls else {})


def _result(block: dict[str, Any], param: str, ignored: list[str]) -> dict[str, Any]:
    content = block.get("content")
    text: Any = "" if content is None else _text(content, f"{param}.content", ignored, images=True)
    id = _string(block, "tool_use_id", param)
    return {"role": "tool", "tool_call_id": id, "content": text}


def _text(
    content: Any, param: str, ignored: list[str], *, images: bool = False
) -> str | list[dict[str, Any]]:
    """Return a string or blocks as chat content."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(
            f"{param} is neither a string nor a list", "Send a string or text blocks.", param=param
        )
    parts = [_part(b, f"{param}[{i}]", ignored, images=images) for i, b in enumerate(content)]
    return _joined([part for part in parts if part is not None])


def _part(
    block: Any, param: str, ignored: list[str], *, images: bool = True
) -> dict[str, Any] | None:
    """Return a block as a part of chat content; None for a block without effect."""
    if not images or _kind(block) != "image":
        text = _block(block, param, ignored)
        return None if text is None else {"type": "text", "text": text}
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    where = f"{param}.source"
    if kind == "base64":
        return base64_image(source.get("data"), where)
    if kind == "url":
        return image_part(_string(source, "url", where), where)
    raise RequestError(
        f"{where} has the unsupported type {shorten(str(kind), 40)!r}",
        "Use base64, with media_type and data, or url.",
        param=where,
    )


def _block(block: Any, param: str, ignored: list[str]) -> str | None:
    """Return a block's text; None for a block without effect, which is noted."""
    kind = _kind(block)
    if kind == "redacted_thinking" or kind in _SERVER_BLOCKS or kind.endswith("_tool_result"):
        ignored.append(param)
        return None
    source = block.get("source") if kind == "document" else None
    if isinstance(source, dict) and source.get("type") == "text":
        title = block.get("title")
        data = _string(source, "data", f"{param}.source", empty=True)
        return f"{title}\n\n{data}" if isinstance(title, str) and title else data
    return text_of(block, param, ("text",))


def _kind(block: Any) -> str:
    return str(block.get("type")) if isinstance(block, dict) else ""


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    return str(parts[0]["text"]) if len(parts) == 1 and "text" in parts[0] else parts


def _string(block: dict[str, Any], name: str, param: str, *, empty: bool = False) -> str:
    value = block.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise RequestError(
            f"{param}.{name} is not a string, or empty",
            f"Give the block a string in {name}.",
            param=f"{param}.{name}",
        )
    return value


# --- tools and options ----------------------------------------------------------------------------


def _tools(
    tools: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, str], list[str]]:
    """Return chat's tools, the body's names for them, and the tools ignored."""
    functions: list[dict[str, Any]] = []
    names, ignored = {}, []
    for i, tool in enumerate(tools):
        param, name, schema = f"tools[{i}]", tool.get("name"), tool.get("input_schema")
        if tool.get("type") not in (None, "custom"):
            ignored.append(param)
            continue
        if not isinstance(name, str) or not name:
            raise RequestError(f"{param} has no name", "Give it one.", param=f"{param}.name")
        if not isinstance(schema, dict):
            raise RequestError(
                f"{param}.input_schema is not an object",
                "Give a JSON schema of the type object.",
                param=f"{param}.input_schema",
            )
        names[f"tools[{len(functions)}].function"] = param
        functions.append(function_tool(name, tool.get("description"), schema, tool.get("strict")))
    return functions, names, ignored[:100]


def _choice(choice: Mapping[str, Any] | None) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = choice.get("type")
    if kind == "tool":
        chat_choice: Any = named_function(_string(dict(choice), "name", "tool_choice"))
    elif isinstance(kind, str) and kind in _CHOICES:
        chat_choice = _CHOICES[kind]
    else:
        raise RequestError(
            f"tool_choice has the unknown type {shorten(str(kind), 40)!r}",
            "Use auto, any, tool or none.",
            param="tool_choice.type",
        )
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": chat_choice, **parallel}


def _thinking(body: CountTokensRequest, model: ServedModel) -> tuple[dict[str, Any], list[str]]:
    """Return chat's fields for `thinking` and `effort`, and what the template has no switch for:
    agents send both to every model."""
    thinking, effort = body.thinking or {}, (body.output_config or {}).get("effort")
    kind, ignored = thinking.get("type"), []
    if kind not in (None, *_THINKING):
        raise RequestError(
            f"thinking has the unknown type {shorten(str(kind), 40)!r}",
            "Use enabled, adaptive or disabled.",
            param="thinking.type",
        )
    fields: dict[str, Any] = {"enable_thinking": None if kind is None else kind != "disabled"}
    if kind == "enabled":
        fields["thinking_token_budget"] = thinking.get("budget_tokens")
    template = model.preprocessor.template
    if "reasoning_effort" in template.variables(template.source(tools=bool(body.tools))):
        fields["reasoning_effort"] = effort
    elif effort is not None:
        ignored.append("output_config.effort")
    return fields, ignored


def _format(config: Mapping[str, Any]) -> dict[str, Any] | None:
    given = config.get("format")
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        raise RequestError(
            "output_config.format is not a json_schema",
            'Send {"type": "json_schema", "schema": ...}.',
            param="output_config.format",
        )
    schema = {"name": "output", "schema": given.get("schema"), "strict": True}
    return {"type": "json_schema", "json_schema": schema}
