"""Arguments as nested elements, as MiniMax-M3 writes them."""

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

MARK = "]<]minimax[>["
[M3] = [spec for spec in FAMILIES if spec.name == "minimax-m3"]
NEED = ChatNeed(template=f"{MARK} <mm:think> </mm:think>")
ADDRESS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "floors": {"type": "array"}},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"$ref": "#/$defs/address"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "count": {"type": "integer"},
        "note": {"type": "string"},
        "empty": {"type": "object"},
        "any": {},
    },
    "$defs": {"address": ADDRESS},
}
TOOLS = [{"type": "function", "function": {"name": "send", "parameters": SCHEMA}}]


def read(text: str, *cuts: int) -> list[Any]:
    parser = Format(M3, NEED).parser("", TOOLS)
    deltas = []
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        deltas += parser.feed(text[start:end])
    return [*deltas, *parser.finish()]


def called(arguments: Any) -> str:
    return written(M3, [("send", arguments)])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"note": f"a{MARK}<b>c{MARK}</b> <item>\n"},
        {"to": {"city": "Rome", "floors": [1, 2]}, "tags": ["a", "b"], "count": 3},
        {"tags": [], "empty": {}},
        {"any": {"deep": {"deeper": ["x", "y"]}}, "note": "  spaces "},
        {"any": [[1], [2, 3]]},
        {"any": True, "note": "1"},
    ],
)
def test_nested_values_come_back(arguments: dict[str, Any]) -> None:
    text = called(arguments)
    [call] = read(text)
    assert (call.kind, call.name, json.loads(call.text)) == ("tool", "send", arguments)


@given(st.lists(st.integers(1, 400), max_size=6).map(sorted))
def test_any_chunking_gives_the_same(cuts: list[int]) -> None:
    text = f"<mm:think>so</mm:think>Well.{called({'to': {'city': 'Rome'}, 'tags': ['a']})}"
    cuts = [min(cut, len(text)) for cut in cuts]
    deltas = read(text, *cuts)
    joined = {kind: "".join(d.text for d in deltas if d.kind == kind) for kind in ("reasoning",)}
    assert joined == {"reasoning": "so"}
    assert "".join(d.text for d in deltas if d.kind == "content") == "Well."
    [call] = [d for d in deltas if d.kind == "tool"]
    assert json.loads(call.text) == {"to": {"city": "Rome"}, "tags": ["a"]}


@pytest.mark.parametrize(
    "inside",
    [
        f"{MARK}<note>a{MARK}</note>{MARK}<note>b{MARK}</note>",
        f"{MARK}<note>a",
        f"{MARK}<tags>{MARK}<item>a{MARK}</item>{MARK}<x>b{MARK}</x>{MARK}</tags>",
        f"{MARK}<any>" * 40,
        f"{MARK}<>x{MARK}</>",
    ],
)
def test_what_is_broken_is_content(inside: str) -> None:
    text = called({}).replace(f"{MARK}</invoke>", f"{inside}{MARK}</invoke>")
    deltas = read(text)
    assert {d.kind for d in deltas} == {"content"}
    assert "".join(d.text for d in deltas) == text


def test_a_turn_without_reasoning_begins_with_its_end() -> None:
    assert [(d.kind, d.text) for d in read("</mm:think>Hello")] == [("content", "Hello")]
