"""The output format that a description and a checkpoint give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferno.contracts import ChatNeed, ToolChoice
from inferno_chat_formats.channels import Channels
from inferno_chat_formats.grammar import grammar
from inferno_chat_formats.parser import Parser, Tagged
from inferno_chat_formats.recipients import Recipients
from inferno_chat_formats.spec import Spec, beginning, strings
from inferno_chat_formats.values import tools_of
from inferno_chat_formats.writer import Writer


class Format:
    """One checkpoint's output format."""

    def __init__(self, spec: Spec, need: ChatNeed) -> None:
        self.spec, self._need = spec, need
        shown = [
            pair
            for pair in spec.reasoning
            if any(marker.strip() in need.template for marker in pair)
        ]
        if spec.always_reasons and not shown:
            shown = list(spec.reasoning[:1])
        self.reasoning = shown[0] if shown else None
        markers = [*(self.reasoning or ()), *spec.around]
        self._special = any(need.is_special(mark) for text in markers for mark in strings(text))
        self._special_calls = any(
            need.is_special(mark)
            for calls in spec.calls
            for part in (calls.opening, calls.closing, calls.between, *calls.call, *calls.parameter)
            if isinstance(part, str)
            for mark in strings(part)
        )

    @property
    def has_tools(self) -> bool:
        return bool(self.spec.calls)

    @property
    def call_markers(self) -> Sequence[str]:
        """Of a section and of a call: a section's opening may be left out."""
        parts = (part for calls in self.spec.calls for part in (calls.opening, calls.call[0]))
        return list(dict.fromkeys(marker for part in parts if (marker := beginning(part))))

    @property
    def call_ends_reasoning(self) -> bool:
        return self.spec.call_ends_reasoning

    @property
    def tool_writer(self) -> Writer | None:
        return Writer(self.spec.calls[0]) if self.spec.writes_tools else None

    def writes_special(self, *, tools: bool) -> bool:
        return self._special or (tools and self._special_calls)

    def opens_reasoning(self, prompt: str) -> bool:
        if self.reasoning is None or self.spec.parser != "tagged":
            return False
        return prompt.rstrip().endswith(self.reasoning[0].strip())

    def parser(
        self, prompt: str, tools: Sequence[Mapping[str, Any]], *, parallel: bool = True
    ) -> Parser:
        known = tools_of(tools)
        if self.spec.parser == "channels":
            return Parser(Channels(known), self.spec.ids, parallel=parallel)
        if self.spec.parser == "recipients":
            recipients = Recipients(known, self.spec.calls[0])
            return Parser(recipients, self.spec.ids, parallel=parallel)
        machine = Tagged(self.spec, self.reasoning, known, opened=self.opens_reasoning(prompt))
        parser = Parser(machine, self.spec.ids, parallel=parallel)
        tail = self.spec.prompt_tail
        if tail and prompt.endswith(tail):
            parser.text.buffer = tail
        return parser

    def call_grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        prompt: str = "",
        *,
        choice: ToolChoice = "required",
        parallel: bool = True,
    ) -> str | None:
        if not self.spec.calls:
            return None
        calls = self.spec.calls[0]
        tail = self.spec.prompt_tail
        return grammar(
            self.spec,
            calls,
            tools,
            self._need.token,
            choice=choice,
            parallel=parallel,
            opened=bool(tail) and prompt.endswith(tail),
        )
