"""Chat formats: how a model writes reasoning and tool calls into its output.

A format is chosen by what the checkpoint says: its chat template, its vocabulary. `build` is called
once, at start-up; then each request has its own parser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from attrs import field, frozen

from inferno.contracts import lazy


class AddedToken(NamedTuple):
    """A token that the tokenizer recognises as a whole, such as a marker of a chat format."""

    id: int
    special: bool
    """Whether decoding leaves it out unless `skip_special_tokens` is false."""


def _no_tokens(text: str) -> AddedToken | None:
    return None


@frozen(kw_only=True)
class ChatNeed:
    """What a checkpoint says about its chat format."""

    template: str = ""
    """The chat template in Jinja, for conversations with tools; empty if there is none."""
    architecture: str = ""
    """The name in `config.json`'s "architectures"."""
    response_template: Mapping[str, Any] | None = None
    """`response_template` of `tokenizer_config.json`."""
    token: Callable[[str], AddedToken | None] = _no_tokens
    """token(text) -> the added token of that text, or None. The first call may read the tokenizer,
    so a format asks it last."""

    def is_special(self, text: str) -> bool:
        """Whether a marker is a special token, which the output's text has only if special tokens
        are kept."""
        entry = self.token(text)
        return entry is not None and entry.special


class Delta(NamedTuple):
    """A part of the answer, in the order it was generated. A tool call is never split."""

    kind: Literal["content", "reasoning", "tool"]
    text: str
    """Of a tool call: its JSON arguments."""
    name: str = ""
    id: str = ""


class OutputParser(Protocol):
    """Splits one output incrementally. Any chunking of the same text gives the same deltas, except
    where strings are split. Nothing is lost: a call that is broken or cut off is content."""

    @property
    def num_calls(self) -> int:
        """How many tool calls were returned so far."""
        ...

    def feed(self, text: str) -> list[Delta]:
        """Return what the next part of the output completes. Raises nothing."""
        ...

    def finish(self) -> list[Delta]:
        """Return the rest at the end of the output. Called once."""
        ...


ToolChoice = Literal["auto", "required"]
"""Whether the answer may call tools, or must."""


class ToolWriter(Protocol):
    """Writes tools into conversations, for a chat template that has none."""

    def instruction(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return what the system message says of the tools (OpenAI's, at least one), and of how
        calls are written."""
        ...

    def call(self, name: str, arguments: str) -> str:
        """Return an earlier call, with arguments in JSON, as the model is told to write it."""
        ...

    def result(self, content: str) -> str:
        """Return a call's result as a part of a user message."""
        ...


class OutputFormat(Protocol):
    """A model's output format, built from a `ChatFormat`.

    It may have `call_ends_reasoning` too, a bool: whether a call may begin in reasoning that was
    not closed. Without it, no call does. And `tool_writer`, a `ToolWriter` or None: then that
    writes tools, calls and results as text, and the chat template gets none. Without it, the
    template writes them."""

    @property
    def has_tools(self) -> bool:
        """Whether the format has tool calls."""
        ...

    @property
    def reasoning(self) -> tuple[str, str] | None:
        """The markers that open and close reasoning, or None if the format has none."""
        ...

    @property
    def call_markers(self) -> Sequence[str]:
        """Strings with which a tool call may begin."""
        ...

    def writes_special(self, *, tools: bool) -> bool:
        """Whether the parser needs the special tokens in the text, with or without tools."""
        ...

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether the rendered prompt has opened reasoning that the output continues."""
        ...

    def parser(
        self, prompt: str, tools: Sequence[Mapping[str, Any]], *, parallel: bool = True
    ) -> OutputParser:
        """Make the parser of one output of the rendered `prompt`. Without tools, apparent calls are
        content. `tools` are OpenAI's: {"type": "function", "function": {...}}."""
        ...

    def call_grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        prompt: str = "",
        *,
        choice: ToolChoice = "required",
        parallel: bool = True,
    ) -> str | None:
        """Return a Lark grammar, in llguidance's dialect, of what follows the reasoning: calls of
        these tools, with arguments that match their schemas. With "required" there must be a call,
        and only calls; with "auto" there may be text too, a call is checked from its marker on, and
        only tools with `strict` have their schemas enforced. None if the format cannot say."""
        ...


@frozen(kw_only=True)
class ChatFormat:
    """A family of output formats."""

    name: str
    matches: Callable[[ChatNeed], str | None] = field(converter=lazy.function)
    """matches(need) -> why the checkpoint has this format, as a sentence, or None if it does not.
    Imports no torch."""
    build: Callable[[ChatNeed], OutputFormat] = field(converter=lazy.function)
    """Called once at start-up. Raises ValueError if the checkpoint's own description is wrong."""
    models: str = ""
    """Models that have it, for the documentation."""
    priority: int = 0
    api_version: int = 1
