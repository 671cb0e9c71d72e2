"""Messages with recipients, as Muse Glimmer writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chat_writing import written
from hypothesis import given
from hypothesis import strategies as st

from inferno.contracts import ChatNeed
from inferno_chat_formats.families import FAMILIES
from inferno_chat_formats.output import Format

[ATEM] = [spec for spec in FAMILIES if spec.name == "atem"]
NEED = ChatNeed(template=" ".join(ATEM.shows))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
NEXT = "<|eom|><|start|>assistant"
CALL = written(ATEM, [("weather", {"city": "Rome", "days": 2})])
ANSWER = f" to=self<|message|>I look.{NEXT} to=user<|message|>Well.{NEXT}{CALL}<|eot|>"


def read(text: str, *cuts: int, tools: Any = TOOLS, parallel: bool = True) -> list[Any]:
    parser = Format(ATEM, NEED).parser("<|start|>assistant", tools, parallel=parallel)
    deltas = []
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        deltas += parser.feed(text[start:end])
    return [*deltas, *parser.finish()]


def text_of(found: list[Any], kind: str) -> str:
    return "".join(d.text for d in found if d.kind == kind)


@given(st.lists(st.integers(0, len(ANSWER)), max_size=8).map(sorted))
def test_reasoning_content_and_calls_are_told_apart(cuts: list[int]) -> None:
    deltas = read(ANSWER, *cuts)
    assert (text_of(deltas, "reasoning"), text_of(deltas, "content")) == ("I look.", "Well.")
    [call] = [d for d in deltas if d.kind == "tool"]
    assert call.name == "weather" and json.loads(call.text) == {"city": "Rome", "days": 2}


def test_an_answer_may_have_no_recipient() -> None:
    assert text_of(read("<|message|>Hello<|eot|>"), "content") == "Hello"


def test_several_calls_are_messages_and_the_first_may_be_the_only_one() -> None:
    text = f"{CALL}{NEXT}{CALL}<|eot|>"
    for parallel, count in ((True, 2), (False, 1)):
        deltas = read(text, parallel=parallel)
        assert [d.kind for d in deltas] == ["tool"] * count


def test_without_tools_a_call_is_content() -> None:
    deltas = read(f"{CALL}<|eot|>", tools=[])
    assert text_of(deltas, "content") == CALL.strip()


@pytest.mark.parametrize(
    "broken",
    [
        CALL.replace("</atem:invoke>", "", 1),
        CALL.replace("<atem:function_calls>", "", 1),
        f"{CALL} and more",
        CALL.replace('<atem:parameter name="days">', "", 1),
    ],
)
def test_a_broken_call_is_content(broken: str) -> None:
    deltas = read(f"{broken}<|eot|>")
    assert text_of(deltas, "content").removesuffix("<|eot|>") == broken.strip()
    assert not [d for d in deltas if d.kind == "tool"]


def test_a_call_that_is_cut_after_its_end_is_a_call() -> None:
    deltas = read(CALL.removesuffix("</atem:function_calls>"))
    assert [d.kind for d in deltas] == ["tool"]
