"""A checkpoint's chat template: renders messages in the format the model was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError, OptionError, RequestError
from inferno.plan.chat_formats import named_templates
from inferno.text.tokenizer import special_token

_RESERVED = {"conversations", "messages", "chat_template", "return_assistant_tokens_mask"}


class ChatTemplate:
    """One or more named Jinja templates. transformers renders them, in a sandbox and without
    importing torch."""

    def __init__(
        self, sources: Mapping[str, str], special_tokens: Mapping[str, str] | None = None
    ) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens or {})

    @classmethod
    def from_assets(cls, assets: TextAssets, override: str | None = None) -> ChatTemplate:
        """The checkpoint's templates, or `override`."""
        sources = named_templates(assets) if override is None else {"default": override}
        tokens = {
            name: special_token(assets.tokenizer_config, name) for name in assets.tokenizer_config
        }
        named = {
            name: token
            for name, token in tokens.items()
            if token is not None and name.endswith("_token")
        }
        return cls(sources, named)

    @property
    def exists(self) -> bool:
        return bool(self._sources)

    def source(self, *, tools: bool = False) -> str:
        """The Jinja source for conversations with or without tools. Raises RequestError if there is
        none."""
        if not self._sources:
            raise RequestError(
                "this model has no chat template",
                "Send a text prompt to /v1/completions or generate(), or give a template: "
                "--chat-template FILE",
                param="messages",
            )
        wanted = "tool_use" if tools and "tool_use" in self._sources else "default"
        return self._sources.get(wanted) or next(iter(self._sources.values()))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Render the prompt. `kwargs` are the template's own variables (`enable_thinking`), and
        `continue_final_message`.

        Raises RequestError with the template's message if it refuses the conversation."""
        source = self.source(tools=bool(tools))
        if not messages:
            raise RequestError("there are no messages", "Send at least one.", param="messages")
        reserved = sorted(_RESERVED & kwargs.keys())
        if reserved:
            raise RequestError(
                f"{reserved[0]} is reserved",
                "Leave it out.",
                param=f"chat_template_kwargs.{reserved[0]}",
            )
        plain = [_plain(m, keep_developer="developer" in source) for m in messages]
        options = self._special_tokens | {"add_generation_prompt": add_generation_prompt} | kwargs
        return _render(source, plain, [dict(t) for t in tools] if tools else None, options)


def _render(
    source: str, messages: list[dict[str, Any]], tools: Any, options: dict[str, Any]
) -> str:
    import jinja2
    from transformers.utils.chat_template_utils import (
        render_jinja_template,
    )  # caches compiled templates

    if options.get("continue_final_message"):
        options = options | {"add_generation_prompt": False}
    try:
        texts: Any = render_jinja_template(
            [messages], tools=tools, chat_template=source, **options
        )[0]
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(
            f"the chat template does not compile, line {error.lineno}: {error.message}",
            "Use another template: --chat-template FILE",
        ) from error
    except Exception as error:  # templates are untrusted programs: they may raise anything
        raise RequestError(
            f"the chat template refused the messages: {error}",
            "Check the roles, their order and the content against the model card.",
            param="messages",
        ) from error
    text: str = texts[0]
    return text


def _plain(message: Mapping[str, Any], *, keep_developer: bool) -> dict[str, Any]:
    """Convert a message to what templates expect: string content, tool arguments as objects, a
    known role."""
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
        # llama.cpp.
        plain["content"] = "\n".join(_part(p) for p in content)
    elif content is None and not plain.get("tool_calls"):
        plain["content"] = ""
    if plain.get("role") == "developer" and not keep_developer:
        plain["role"] = (
            # OpenAI's newer name; templates that do not know it would drop the message
            "system"
        )
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_tool_call(c) for c in plain["tool_calls"]]
    return plain


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


def _tool_call(call: Any) -> Any:
    """Parse a call's arguments, a JSON string in requests, to the object that templates expect."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return (
        {**call, "function": {**function, "arguments": arguments}}
        if isinstance(arguments, dict)
        else call
    )


def read_template(override: str) -> str:
    """Read a template given by the user: a string with Jinja in it, or else a file's path. Raises
    OptionError."""
    if "{%" in override or "{{" in override:
        return override
    try:
        return Path(override).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise OptionError(
            f"chat template {override!r} cannot be read: {error}",
            "Give the path of a Jinja file, or the template itself.",
        ) from error
