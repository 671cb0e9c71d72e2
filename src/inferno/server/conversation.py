"""A conversation becomes a prompt: for chat completions, and for /tokenize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import asdict, frozen

from inferno.errors import RequestError
from inferno.server.errors import unsupported
from inferno.server.model import ServedModel, in_time
from inferno.server.schema import ChatRequest, Message, TokenizeRequest

_ROLES = ("system", "developer", "user", "assistant", "tool")


@frozen
class ChatPrompt:
    """What the chat template wrote."""

    text: str
    token_ids: tuple[int, ...]
    ignored: tuple[str, ...]
    """Template variables that the template does not mention."""


async def encode_chat(
    model: ServedModel, data: ChatRequest | TokenizeRequest, tools: Sequence[dict[str, Any]]
) -> ChatPrompt:
    """The conversation as the model's chat template writes it. Raises RequestError."""
    messages = [_message(m, i) for i, m in enumerate(data.messages or ())]
    tokenizer, preprocessor = model.needed_tokenizer("messages"), model.preprocessor
    source = preprocessor.template.source(tools=bool(tools))
    variables = data.chat_template_kwargs or {}
    options = {**_effort(data, source), **variables, **_ending(data)}
    special = isinstance(data, TokenizeRequest) and bool(data.add_special_tokens)

    def work() -> tuple[str, tuple[int, ...]]:
        text = preprocessor.render_chat(messages, tools=tools or None, **options)
        return text, tuple(tokenizer.encode(text, add_special_tokens=special))

    text, ids = await in_time(work, sum(len(str(m.get("content"))) for m in messages))
    unknown = [f"chat_template_kwargs.{name[:80]}" for name in variables if name not in source]
    return ChatPrompt(text, ids, tuple(unknown[:20]))


def tools_to_offer(
    data: ChatRequest, *, can_call: bool
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The function tools to offer, and the names of those of other types: clients send them too,
    and no model can call them here. `can_call` says whether this model can. Raises
    RequestError."""
    choice, tools, ignored = data.tool_choice, [], []
    for i, tool in enumerate(data.tools or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            ignored.append(f"tools[{i}]")
        elif not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"tools[{i}] has no function.name", "Name it.", param=f"tools[{i}].function.name"
            )
        else:
            tools.append(tool)
    if isinstance(choice, dict) or choice == "required":
        raise unsupported("tool_choice", "Use auto or none: calls cannot be forced yet.")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            f"tool_choice is {choice[:40]!r}", "Use auto or none.", param="tool_choice"
        )
    if choice == "none" or not tools:
        return [], tuple(ignored)
    if not can_call:
        raise unsupported(
            "tools", "This model's tokenizer_config.json does not say how it writes tool calls."
        )
    return tools, tuple(ignored)


def _message(message: Message, i: int) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise RequestError(
            f"messages[{i}] has role {message.role[:40]!r}",
            f"Roles are {', '.join(_ROLES)}.",
            param=f"messages[{i}].role",
        )
    plain = {name: value for name, value in asdict(message).items() if value is not None}
    for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(
            part.get("text"), str
        ):
            raise RequestError(
                f"messages[{i}].content[{j}] is of type {str(part.get('type'))[:40]!r}",
                "This server takes text parts only.",
                param=f"messages[{i}].content[{j}]",
                code="unsupported_parameter",
            )
    # Templates know one name of the two; whichever the client sent back is meant.
    reasoning = plain.pop("reasoning", None) or plain.get("reasoning_content")
    return plain | ({"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {})


def _ending(data: ChatRequest | TokenizeRequest) -> dict[str, bool]:
    """How the prompt ends: with the beginning of a new message, or in the last one."""
    if not data.continue_final_message:
        return {"add_generation_prompt": data.add_generation_prompt is not False}
    if data.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other",
            "Leave one out.",
            param="add_generation_prompt",
        )
    return {"add_generation_prompt": False, "continue_final_message": True}


def _effort(data: ChatRequest | TokenizeRequest, source: str) -> dict[str, Any]:
    """`reasoning_effort` as a variable that the template knows."""
    effort = data.reasoning_effort if isinstance(data, ChatRequest) else None
    if effort is None:
        return {}
    if "reasoning_effort" in source:
        return {"reasoning_effort": effort}
    if "enable_thinking" in source:
        return {"enable_thinking": effort != "none"}
    if effort != "none":
        raise unsupported(
            "reasoning_effort", "This model's chat template has no such switch: leave it out."
        )
    return {}
