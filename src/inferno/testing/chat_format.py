"""Tests of a chat format: it is chosen by a template, reads back what the template renders, and
loses nothing of a broken answer, however it arrives."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import ChatFormat, ChatNeed, Delta, OutputFormat, ToolWriter
from inferno.text import ChatTemplate, with_written_tools

_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "A city"},
        "days": {"type": "integer", "description": "Days"},
    },
    "required": ["city"],
}
TOOLS: Sequence[Mapping[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": _SCHEMA}}
    for name in ("weather", "get_time")
]
_CALLS = [("weather", {"city": "São Paulo", "days": 3}), ("get_time", {"city": "Graz"})]
_USER = {"role": "user", "content": "Hello?"}
_CUTS = st.lists(st.integers(0, 999), max_size=6)


@cache
def _catalog() -> Catalog:
    return load_catalog()


@cache
def _built(name: str, template: str) -> OutputFormat:
    built: OutputFormat = _catalog().named(ChatFormat, name).item.build(ChatNeed(template=template))
    return built


class ChatFormatTests:
    """Subclass it for each template, and set `name` and `template`. `parallel` is false if the
    template writes one call per answer, `reasons` if it writes back reasoning."""

    name: ClassVar[str]
    """The format's."""
    template: ClassVar[str]
    """A chat template that the format is chosen by."""
    parallel: ClassVar[bool] = True
    reasons: ClassVar[bool] = False

    def format(self) -> OutputFormat:
        return _built(self.name, self.template)

    def turn(self, count: int, **message: Any) -> tuple[str, str]:
        """Return the prompt, and the answer with that many calls as the template writes it. The
        answer goes on with what ends a turn."""
        calls = [
            {
                "id": f"abcdef{i:03}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for i, (name, arguments) in enumerate(_CALLS[:count])
        ]
        answer = {"role": "assistant", "content": None, "tool_calls": calls, **message}
        prompt = self.rendered([_USER])
        whole = self.rendered([_USER, answer], add_generation_prompt=False)
        reasoning = self.format().reasoning
        if not whole.startswith(prompt) and reasoning is not None:
            # The prompt opens reasoning that the turn does not have.
            prompt = prompt.rstrip().removesuffix(reasoning[0].strip())
        shared = os.path.commonprefix([prompt, whole])
        return shared, whole[len(shared) :]

    def rendered(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Render a conversation with tools, which the format's writer writes if it has one."""
        template = ChatTemplate({"": self.template}, {"bos_token": "", "eos_token": "<eos>"})
        tools: Sequence[Mapping[str, Any]] | None = TOOLS
        writer: ToolWriter | None = getattr(self.format(), "tool_writer", None)
        if writer is not None:
            messages, tools = with_written_tools(messages, TOOLS, writer), None
        return template.render(
            messages, tools=tools, enable_thinking=True, thinking=True, **options
        )

    def read(self, prompt: str, text: str, cuts: Iterable[int] = ()) -> list[Delta]:
        """Parse the text in pieces; neighbours of one kind become one."""
        parser = self.format().parser(prompt, TOOLS)
        at = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
        deltas: list[Delta] = []
        pieces = (text[a:b] for a, b in zip(at, at[1:], strict=False))
        for delta in [d for piece in pieces for d in parser.feed(piece)] + parser.finish():
            if deltas and deltas[-1].kind == delta.kind != "tool":
                deltas[-1] = deltas[-1]._replace(text=deltas[-1].text + delta.text)
            else:
                deltas.append(delta._replace(id=""))
        return deltas

    def test_the_template_shows_the_format(self) -> None:
        choice, why, _ = _catalog().chat_format(ChatNeed(template=self.template))
        assert choice is not None and (choice.item.name, bool(why)) == (self.name, True)

    def test_calls_that_the_template_writes_are_read(self) -> None:
        count = 2 if self.parallel else 1
        prompt, text = self.turn(count)
        calls = [d for d in self.read(prompt, text) if d.kind == "tool"]
        assert [(c.name, json.loads(c.text)) for c in calls] == _CALLS[:count]

    def test_reasoning_that_the_template_writes_is_read(self) -> None:
        if self.reasons:
            prompt, text = self.turn(1, reasoning_content="I look it up.")
            pieces = [d.text for d in self.read(prompt, text) if d.kind == "reasoning"]
            assert "".join(pieces).strip() == "I look it up."

    def test_every_call_has_an_id_of_its_own(self) -> None:
        prompt, text = self.turn(1)
        parser = self.format().parser(prompt, TOOLS)
        ids = [d.id for d in [*parser.feed(text), *parser.finish()] if d.kind == "tool"]
        assert all(ids) and len(set(ids)) == parser.num_calls > 0

    def test_without_tools_there_are_no_calls(self) -> None:
        prompt, text = self.turn(1)
        parser = self.format().parser(prompt, [])
        assert all(d.kind != "tool" for d in [*parser.feed(text), *parser.finish()])

    def test_any_chunking_gives_the_same_and_a_broken_answer_keeps_its_words(self) -> None:
        prompt, text = self.turn(1)

        @settings(max_examples=60, deadline=None)
        @given(st.integers(0, len(text)), st.integers(0, 9), st.integers(0, len(text)), _CUTS)
        def check(at: int, removed: int, length: int, cuts: list[int]) -> None:
            broken = (text[:at] + "ZQX" + text[at + removed :])[: max(length, at + 3)]
            whole = self.read(prompt, broken)
            assert self.read(prompt, broken, cuts) == whole
            assert self.read(prompt, broken, range(len(broken))) == whole
            assert "ZQX" in "".join(d.text + d.name for d in whole)

        check()
