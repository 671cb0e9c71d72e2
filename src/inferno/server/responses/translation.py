"""Makes a chat request from a response's body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferno.errors import RequestError
from inferno.server.chat.translate import Translation, function_tool, named_function
from inferno.server.http.errors import shorten
from inferno.server.http.parsing import Parsed
from inferno.server.responses.items import Item, to_messages, without_effect
from inferno.server.responses.sampling import SAMPLING
from inferno.server.responses.schema import ResponsesRequest

LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"

_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
}
_SAME = (
    "model",
    "stream",
    "parallel_tool_calls",
    "priority",
    "cache_salt",
    "session_ttl",
    "request_id",
    "chat_template_kwargs",
    "truncation",
    *(p.name for p in SAMPLING),
)
_MAX_METADATA = 16


def translate(
    parsed: Parsed[ResponsesRequest],
    before: Sequence[Item],
    new: Sequence[Item],
    session: str | None = None,
) -> Translation:
    """Make a chat request from a body, its `new` items and those that it continues. Raises
    RequestError."""
    body = parsed.body
    tools, choice, names, ignored = _tools(body)
    logprobs = wants_logprobs(body)
    chat = {
        **{name: getattr(body, name) for name in _SAME},
        "messages": to_messages([*before, *new], body.instructions),
        "max_tokens": body.max_output_tokens,
        "session_id": session,
        "tools": tools or None,
        "tool_choice": choice,
        "response_format": _response_format(body.text or {}),
        "reasoning_effort": _effort(body.reasoning or {}),
        "logprobs": logprobs or None,
        "top_logprobs": body.top_logprobs if logprobs else None,
    }
    ignored = [*parsed.ignored, *ignored, *without_effect(new), *_details(body)]
    return Translation(chat, _NAMES | names, ignored)


def wants_logprobs(body: ResponsesRequest) -> bool:
    return LOGPROBS in (body.include or ()) or body.top_logprobs is not None


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """Check metadata. Raises RequestError."""
    checked = dict(metadata or {})
    if len(checked) > _MAX_METADATA or any(
        len(key) > 64 or not isinstance(value, str) or len(value) > 512
        for key, value in checked.items()
    ):
        raise RequestError(
            "invalid metadata",
            f"Give up to {_MAX_METADATA} strings of at most 512 characters, with keys of at most "
            "64.",
            param="metadata",
        )
    return checked


def _tools(
    body: ResponsesRequest,
) -> tuple[list[dict[str, Any]], Any, dict[str, str], list[str]]:
    """Return chat's tools and tool choice, the body's names for them, and the tools ignored."""
    tools: list[dict[str, Any]] = []
    names, ignored = {}, []
    choice, allowed = _choice(body.tool_choice)
    for i, tool in enumerate(body.tools or ()):
        name = tool.get("name")
        if tool.get("type") != "function":
            ignored.append(f"tools[{i}]")
        elif not isinstance(name, str) or not name:
            raise RequestError(f"tools[{i}] has no name", "Give it one.", param=f"tools[{i}].name")
        elif allowed is None or name in allowed:
            names[f"tools[{len(tools)}].function"] = f"tools[{i}]"
            given = (tool.get(key) for key in ("description", "parameters", "strict"))
            tools.append(function_tool(name, *given))
    return tools, choice, names, ignored[:100]


def _choice(choice: str | dict[str, Any] | None) -> tuple[Any, frozenset[str] | None]:
    """Return chat's tool choice, and the names of the tools that may be called; None for all."""
    if choice is None or isinstance(choice, str):
        return choice, None
    kind, name = choice.get("type"), choice.get("name")
    if kind == "function" and isinstance(name, str):
        return named_function(name), None
    tools = choice.get("tools")
    if kind == "allowed_tools" and isinstance(tools, list):
        names = frozenset(
            str(tool.get("name"))
            for tool in tools
            if isinstance(tool, dict) and tool.get("type") == "function"
        )
        mode = choice.get("mode", "auto")
        return (mode if isinstance(mode, str) else str(mode)[:40]), names
    raise RequestError(
        f"tool_choice has the unsupported type {shorten(str(kind), 40)!r}",
        "Use auto, none, required, a function or allowed_tools.",
        param="tool_choice",
        code="unsupported_parameter",
    )


def _response_format(text: Mapping[str, Any]) -> dict[str, Any] | None:
    given = text.get("format")
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in ("text", "json_object"):
        return {"type": kind}
    if kind != "json_schema":
        raise RequestError(
            f"text.format has the unknown type {shorten(str(kind), 40)!r}",
            "Use text, json_object or json_schema.",
            param="text.format.type",
        )
    schema = {k: given[k] for k in ("name", "schema", "strict", "description") if k in given}
    return {"type": "json_schema", "json_schema": schema}


def _effort(reasoning: Mapping[str, Any]) -> str | None:
    effort = reasoning.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise RequestError(
            "reasoning.effort is not a string", "Use low, medium or high.", param="reasoning.effort"
        )
    return effort


def _details(body: ResponsesRequest) -> list[str]:
    """Return the names of what has no effect within fields that have one."""
    text, reasoning = body.text or {}, body.reasoning or {}
    harmless: dict[str, Any] = {"verbosity": "medium", "mode": "standard", "context": "auto"}
    known = {"format", "effort", "summary", "generate_summary"}
    names = [
        f"{field}.{shorten(name, 80)}"
        for field, given in (("text", text), ("reasoning", reasoning))
        for name, value in given.items()
        if name not in known and value is not None and harmless.get(name) != value
    ]
    known_includes = (LOGPROBS, SEALED_REASONING)
    names += [
        f"include[{i}]" for i, name in enumerate(body.include or ()) if name not in known_includes
    ]
    return names[:20]


def conversation_id(body: ResponsesRequest) -> str | None:
    """Return the id of the conversation that the response belongs to. Raises RequestError."""
    given = body.conversation
    id = given.get("id") if isinstance(given, dict) else given
    if given is not None and not isinstance(id, str):
        raise RequestError(
            "conversation has no id", "Give a conversation's id.", param="conversation"
        )
    if id is not None and body.previous_response_id is not None:
        raise RequestError(
            "conversation and previous_response_id exclude each other",
            "Send one of them.",
            param="previous_response_id",
        )
    return id
