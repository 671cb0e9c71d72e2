"""Turns a conversation into a prompt, for chat completions and /tokenize."""

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
    """A rendered conversation."""

    text: str
    token_ids: tuple[int, ...]
    ignored: tuple[str, ...]
    """Template variables in the request that the template does not use."""


async def encode_chat(
    model: ServedModel, data: ChatRequest | TokenizeRequest, tools: Sequence[dict[str, Any]]
) -> ChatPrompt:
    """Render the conversation with the model's chat template. Raises RequestError."""
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
    """Return the function tools to offer, and the names of tools of other types, which clients send
    too but no model here can call. `can_call`: whether this model can call tools. Raises
    RequestError."""
    choice, tools, ignored = data.tool_choice, [], []
    for i, tool in enumerate(data.tools or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            ignored.append(f"tools[{i}]")
        elif not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"tools[{i}] has no function.name",
                "Give it a name.",
                param=f"tools[{i}].function.name",
            )
        else:
            tools.append(tool)
    if isinstance(choice, dict) or choice == "required":
        raise unsupported("tool_choice", "Use auto or none: calls cannot be forced yet.")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            f"invalid tool_choice {choice[:40]!r}", "Use auto or none.", param="tool_choice"
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
            f"messages[{i}] has the unknown role {message.role[:40]!r}",
            f"Use one of {', '.join(_ROLES)}.",
            param=f"messages[{i}].role",
        )
    plain = {name: value for name, value in asdict(message).items() if value is not None}
    for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(
            part.get("text"), str
        ):
            raise RequestError(
                f"messages[{i}].content[{j}] has unsupported type {str(part.get('type'))[:40]!r}",
                "Send text parts only.",
                param=f"messages[{i}].content[{j}]",
                code="unsupported_parameter",
            )
    # Templates know one of the two names; clients send back either.
    reasoning = plain.pop("reasoning", None) or plain.get("reasoning_content")
    return plain | ({"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {})


def _ending(data: ChatRequest | TokenizeRequest) -> dict[str, bool]:
    """Template options for the end of the prompt: open a new message, or continue the last."""
    if not data.continue_final_message:
        return {"add_generation_prompt": data.add_generation_prompt is not False}
    if data.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt cannot be combined",
            "Leave one out.",
            param="add_generation_prompt",
        )
    return {"add_generation_prompt": False, "continue_final_message": True}


def _effort(data: ChatRequest | TokenizeRequest, source: str) -> dict[str, Any]:
    """Map `reasoning_effort` to a variable that the template knows."""
    effort = data.reasoning_effort if isinstance(data, ChatRequest) else None
    if effort is None:
        return {}
    if "reasoning_effort" in source:
        return {"reasoning_effort": effort}
    if "enable_thinking" in source:
        return {"enable_thinking": effort != "none"}
    if effort != "none":
        raise unsupported(
            "reasoning_effort", "This model's chat template cannot switch reasoning: leave it out."
        )
    return {}
