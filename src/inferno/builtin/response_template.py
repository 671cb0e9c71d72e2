"""The chat format that a checkpoint describes itself: `response_template` of
`tokenizer_config.json`, which transformers' ResponseParser reads."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from inferno.contracts import ChatNeed, Delta, ToolChoice

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of reasoning in response templates."""


def matches(need: ChatNeed) -> str | None:
    return "tokenizer_config.json has a response_template" if need.response_template else None


def build(need: ChatNeed) -> ResponseFormat:
    """Read the response template. Raises ValueError if transformers cannot."""
    from transformers.utils.chat_parsing.response_templates import load_response_template

    template = need.response_template
    assert template, "the format matched"
    load_response_template(dict(template))  # fail here, not at the first request
    special = any(need.is_special(mark) for mark in _marks(template))
    return ResponseFormat(template, special)


@frozen
class ResponseFormat:
    template: Mapping[str, Any]
    special: bool = False
    """Whether some of the template's markers are special tokens."""

    @property
    def has_tools(self) -> bool:
        return "tool_calls" in self.template.get("fields", {})

    @property
    def reasoning(self) -> tuple[str, str] | None:
        for name in REASONING:
            row = self.template.get("fields", {}).get(name)
            if row and (opens := _literals(row, "open")) and (closes := _literals(row, "close")):
                return opens[0], closes[0]
        return None

    @property
    def call_markers(self) -> Sequence[str]:
        return _literals(self.template.get("fields", {}).get("tool_calls", {}), "open")

    def writes_special(self, *, tools: bool) -> bool:
        return self.special

    def opens_reasoning(self, prompt: str) -> bool:
        if self.reasoning is None:
            return False
        opened, closed = map(prompt.rfind, self.reasoning)
        return opened > closed

    def parser(
        self, prompt: str, tools: Sequence[Mapping[str, Any]], *, parallel: bool = True
    ) -> ResponseParser:
        fields = {k: v for k, v in self.template["fields"].items() if tools or k != "tool_calls"}
        return ResponseParser({**self.template, "fields": fields}, prompt, tools, parallel=parallel)

    def call_grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        prompt: str = "",
        *,
        choice: ToolChoice = "required",
        parallel: bool = True,
    ) -> str | None:
        return None  # the template says how to read calls, not how to write them


class ResponseParser:
    """Splits one output incrementally. Any chunking gives the same deltas, except where strings are
    split."""

    def __init__(
        self,
        template: Mapping[str, Any],
        prompt: str,
        tools: Sequence[Mapping[str, Any]],
        *,
        parallel: bool = True,
    ) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._parser: Any = ResponseParser(
            dict(template), prefix=prompt, tools=[dict(t) for t in tools] or None
        )
        self._closers = {name: _literals(row, "close") for name, row in template["fields"].items()}
        self._parallel = parallel
        self._raw, self._seen = "", 0
        """Output since the last delta, and how much of it belongs to an unfinished structure."""
        self._trim = any(e["type"] == "region_close" for e in self._parser.initial_events)
        self.num_calls = 0

    def feed(self, text: str) -> list[Delta]:
        self._raw += text
        if self._parser is None:
            return self._give_up()
        try:
            return self._deltas(self._parser.feed(text))
        except ValueError:  # a call that is not the JSON the template declares
            return self._give_up()

    def finish(self) -> list[Delta]:
        if self._parser is None:
            return []
        try:
            return self._deltas(self._parser.finalize()[1])
        except ValueError:  # cut off in the middle of a call
            return self._give_up()

    def _give_up(self) -> list[Delta]:
        """Return the rest of the output as content, unparsed."""
        self._parser, text, self._raw = None, self._raw, ""
        return [Delta("content", text)] if text else []

    def _deltas(self, events: Sequence[Mapping[str, Any]]) -> list[Delta]:
        deltas = []
        for event in events:
            kind, name = event["type"], event["field"]
            if kind == "region_chunk":
                self._advance(event["text"], keep=event["dirty"])
                if not event["dirty"]:
                    deltas += self._text(name, event["text"])
            elif kind == "region_open":
                self._trim = self._trim or name in REASONING
            elif kind == "region_close":
                self._close(name)
                if name == "tool_calls":
                    deltas += self._calls(event["value"])
                self._trim = True
        return deltas

    def _text(self, name: str, text: str) -> list[Delta]:
        if self._trim:  # line breaks between regions belong to neither
            text = text.lstrip("\n")
            self._trim = not text
        if not text:
            return []
        return [Delta("reasoning" if name in REASONING else "content", text)]

    def _calls(self, value: Any) -> list[Delta]:
        calls = []
        for each in value if isinstance(value, list) else [value]:
            function = each.get("function", each) if isinstance(each, Mapping) else {}
            name, arguments = function.get("name"), function.get("arguments", {})
            if not isinstance(name, str):
                raise ValueError("a call without a name")
            if self.num_calls and not self._parallel:
                continue
            self.num_calls += 1
            text = (
                arguments
                if isinstance(arguments, str)
                else json.dumps(arguments, ensure_ascii=False)
            )
            calls.append(Delta("tool", text, name, f"call_{uuid.uuid4().hex[:24]}"))
        return calls

    def _advance(self, text: str, *, keep: bool) -> None:
        end = self._raw.find(text, self._seen) + len(text)
        if keep:
            self._seen = end
        else:
            self._raw, self._seen = self._raw[end:], 0

    def _close(self, name: str) -> None:
        self._raw, self._seen = self._raw[self._seen :], 0
        for closer in self._closers.get(name, ()):
            if self._raw.startswith(closer):
                self._raw = self._raw[len(closer) :]
                return


def _literals(row: Mapping[str, Any], key: str) -> list[str]:
    value = row.get(key, [])
    return [value] if isinstance(value, str) else list(value)


def _marks(template: Mapping[str, Any]) -> list[str]:
    """The markers that open and close regions. A region without an opening marker ends with the
    output."""
    rows = [
        row for row in template.get("fields", {}).values() if "open" in row or "open_pattern" in row
    ]
    return [mark for row in rows for key in ("open", "close") for mark in _literals(row, key)]
