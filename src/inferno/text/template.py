"""A checkpoint's chat template: renders messages in the format the model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import thread_time
from typing import Any

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError, OptionError, RequestError
from inferno.plan.chat_formats import named_templates
from inferno.text.messages import TemplateNeeds, checked, converted
from inferno.text.tokenizer import special_token

_RESERVED = {"conversations", "messages", "chat_template", "return_assistant_tokens_mask"}


class SlowTemplateError(RequestError):
    """A chat template takes too long to render a conversation."""


class ChatTemplate:
    """One or more named Jinja templates, rendered in a sandbox (`inferno.text.rendering`)."""

    def __init__(
        self, sources: Mapping[str, str], special_tokens: Mapping[str, str] | None = None
    ) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens or {})
        self._needs: dict[str, TemplateNeeds] = {}
        self._variables: dict[str, frozenset[str]] = {}

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
        seconds: float | None = None,
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Render the prompt. `kwargs` are the template's own variables (`enable_thinking`), and
        `continue_final_message`. The template may take so many `seconds`, or 2.

        Raises RequestError with the template's message if it refuses the conversation, and
        SlowTemplateError if it takes too long."""
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
        plain = checked(messages)
        options = self._special_tokens | {"add_generation_prompt": add_generation_prompt} | kwargs
        plain = converted(plain, self.needs(source))
        given = [dict(t) for t in tools] if tools else None
        return _render(source, plain, given, options, seconds)

    def warm_up(self) -> None:
        """Compile the template of plain conversations, and find what it expects, before the first
        of them comes."""
        if self.exists:
            self.needs(self.source())

    def variables(self, source: str) -> frozenset[str]:
        """Return the names that one of the templates reads and does not set itself."""
        if source not in self._variables:
            from inferno.text.rendering import variables_of

            self._variables[source] = variables_of(source)
        return self._variables[source]

    def needs(self, source: str) -> TemplateNeeds:
        """Return what one of the templates expects of messages, found when it is first used."""
        if source not in self._needs:
            from inferno.text.bounded import SECONDS
            from inferno.text.rendering import rendered

            names: dict[str, Any] = dict(self._special_tokens)
            # For all of these conversations: a template that takes as long for each would hold up
            # the start.
            end = thread_time() + SECONDS
            self._needs[source] = TemplateNeeds.of(
                source,
                lambda messages, tools: rendered(
                    source, messages, tools, end - thread_time(), **names
                ),
            )
        return self._needs[source]


def _render(
    source: str,
    messages: list[dict[str, Any]],
    tools: Any,
    options: dict[str, Any],
    seconds: float | None,
) -> str:
    import jinja2

    from inferno.text.bounded import SECONDS, TemplateLimitError, TemplateTimeError, line_of
    from inferno.text.rendering import rendered

    if options.get("continue_final_message"):
        options = options | {"add_generation_prompt": False}
    try:
        limit = SECONDS if seconds is None else seconds
        return rendered(source, messages, tools, limit, **options)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(
            f"the chat template does not compile, line {error.lineno}: {error.message}",
            "Use another template: --chat-template FILE",
        ) from error
    except TemplateLimitError as error:
        kind = SlowTemplateError if isinstance(error, TemplateTimeError) else RequestError
        raise kind(
            f"{error}, line {line_of(error)}",
            "Send fewer or shorter messages, or use another template: --chat-template FILE",
            param="messages",
        ) from error
    except Exception as error:  # templates are untrusted programs: they may raise anything
        where = "" if type(error) is jinja2.TemplateError else f" (line {line_of(error)})"
        raise RequestError(
            f"the chat template refused the messages: {error}{where}",
            "Check the roles, their order and the content against the model card.",
            param="messages",
        ) from error


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
