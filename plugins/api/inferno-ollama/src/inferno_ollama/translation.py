"""Makes a chat request from Ollama's bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from attrs import fields_dict

from inferno.errors import ModelNotFoundError, RequestError
from inferno.server.api import (
    Models,
    Parsed,
    ServedModel,
    Translation,
    base64_image,
    function_call,
    read,
    shorten,
)
from inferno_ollama.schema import (
    Generating,
    OllamaChatRequest,
    OllamaGenerateRequest,
    Options,
)

_OPTIONS = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""Options that have other names in chat requests."""
_NAMES = {
    **{_OPTIONS.get(name, name): f"options.{name}" for name in fields_dict(Options)},
    "response_format": "format",
    "reasoning_effort": "think",
}


async def find(models: Models, name: str) -> ServedModel:
    """Return the model of that name, with or without the tag `:latest`. Raises
    ModelNotFoundError."""
    return await models.find(plain_name(models, name))


def plain_name(models: Models, name: str) -> str:
    """Return the served name that a client's name means, or the name itself."""
    short = name.removesuffix(":latest")
    if not name:
        raise ModelNotFoundError(
            "the model's name is empty", f"Use one of: {', '.join(models.names)}"
        )
    return short if name not in models.names and short in models.names else name


def translate_chat(parsed: Parsed[OllamaChatRequest], model: ServedModel) -> Translation:
    """Make a chat request. Raises RequestError."""
    body = parsed.body
    messages = _messages(body.messages or ())
    return _translation(parsed, model, messages, _tools(body.tools))


def translate_prompt(parsed: Parsed[OllamaGenerateRequest], model: ServedModel) -> Translation:
    """Make a chat request from a prompt. Raises RequestError."""
    body = parsed.body
    messages = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": _seeing(body.prompt or "", body.images)})
    return _translation(parsed, model, messages)


def sampling(body: Generating) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options under a chat request's names, and those without effect. Raises
    RequestError."""
    try:
        parsed = read(body.options or {}, Options)
    except RequestError as error:
        if error.param is not None:
            error.param = f"options.{error.param}"
        raise
    settings: dict[str, Any] = {}
    for name in fields_dict(Options):
        if (value := getattr(parsed.body, name)) is None:
            continue
        if (name, value) in (("seed", -1), ("num_predict", -1), ("num_predict", -2)):
            continue
        settings[_OPTIONS.get(name, name)] = value
    return settings, tuple(f"options.{name}" for name in parsed.ignored)


def _translation(
    parsed: Parsed[Any],
    model: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> Translation:
    body = parsed.body
    options, ignored = sampling(body)
    chat = {
        "model": next((name for name in model.names if name == body.model), model.names[0]),
        "messages": list(messages),
        "tools": tools,
        "stream": body.stream is not False,
        "response_format": response_format(body.format),
        "reasoning_effort": _effort(body.think),
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs,
        **options,
    }
    return Translation(chat, _NAMES, (*parsed.ignored, *ignored))


def response_format(format: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a chat request's `response_format`. Raises RequestError."""
    if not format:
        return None
    if isinstance(format, dict):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": format}}
    if format != "json":
        raise RequestError(
            f"invalid format {format[:40]!r}", "Use json, or a JSON schema.", param="format"
        )
    return {"type": "json_object"}


def _effort(think: bool | str | None) -> str | None:
    if isinstance(think, bool):
        return "medium" if think else "none"
    if think not in (None, "low", "medium", "high", "max"):
        raise RequestError(
            f"invalid think {shorten(str(think), 40)!r}",
            "Use true, false, low, medium or high.",
            param="think",
        )
    return think


def _tools(tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    return [{"type": "function", **tool} for tool in tools] if tools else None


def _messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return chat messages. Calls get ids, and results those of the calls that they answer: by
    name, else in order."""
    turns: list[dict[str, Any]] = []
    open_calls: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        param = f"messages[{i}]"
        known = ("role", "content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id")
        new = {key: value for key, value in message.items() if key not in known}
        content = _seeing(message.get("content", ""), message.get("images"), param)
        new |= {"role": message.get("role"), "content": content}
        if message.get("thinking"):
            new["reasoning"] = message["thinking"]
        if message.get("tool_calls"):
            new["tool_calls"] = open_calls = _calls(message["tool_calls"], i, param)
            open_calls = list(open_calls)
        if message.get("role") == "tool":
            name = message.get("tool_name") or message.get("name")
            id = message.get("tool_call_id") or _answered(open_calls, name)
            new |= {"name": name} if name else {}
            new |= {"tool_call_id": id} if id else {}
        turns.append(new)
    return turns


def _seeing(content: Any, images: Any, param: str = "") -> Any:
    """Return a message's content with its images, which come first. Raises RequestError."""
    if not images:
        return content
    where = f"{param}.images".lstrip(".")
    if not isinstance(images, list) or not isinstance(content, str):
        raise RequestError(f"{where} is not a list", "Give images in base64.", param=where)
    parts = [base64_image(image, f"{where}[{i}]") for i, image in enumerate(images)]
    return [*parts, {"type": "text", "text": content}]


def _calls(calls: Any, i: int, param: str) -> list[dict[str, Any]]:
    entries = []
    for j, call in enumerate(calls if isinstance(calls, list) else [calls]):
        where = f"{param}.tool_calls[{j}]"
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            raise RequestError(
                f"{where} has no function.name", "Give it a name.", param=f"{where}.function"
            )
        arguments = function.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        entries.append(function_call(str(call.get("id") or f"call_{i}_{j}"), name, arguments))
    return entries


def _answered(open_calls: list[dict[str, Any]], name: Any) -> str | None:
    """Take the call that a result answers."""
    named = [call for call in open_calls if call["function"]["name"] == name]
    call = next(iter(named or open_calls), None)
    if call is None:
        return None
    open_calls.remove(call)
    return str(call["id"])
