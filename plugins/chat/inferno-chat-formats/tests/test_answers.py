"""Answers between markers: ERNIE 4.5 Thinking's and Hunyuan-A13B's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferno.contracts import ChatNeed, Delta
from inferno_chat_formats.families import FAMILIES
from inferno_chat_formats.output import Format

SPECS = {spec.name: spec for spec in FAMILIES if spec.answer}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "get_time")
]
CALLS = [("weather", {"city": "Graz"}), ("get_time", {"city": "Linz"})]
OBJECTS = [{"name": name, "arguments": arguments} for name, arguments in CALLS]
ERNIE_CALLS = "\n".join(f"<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in OBJECTS)
HUNYUAN_CALLS = f"<tool_calls>{json.dumps(OBJECTS)}</tool_calls>"

ANSWERS = {
    "ernie: reasoning and answer": (
        "ernie",
        "I look.\n\nSo.\n</think>\n\n<response>\nWell,\n\n  yes.\n</response>\n",
        ("I look.\n\nSo.", "Well,\n\n  yes.", 0),
    ),
    "ernie: no markers": ("ernie", "I look.\n</think>\nWell.", ("I look.", "Well.", 0)),
    "ernie: no thinking": (
        "ernie",
        "\n</think>\n\n<response>\nYes.\n</response>\n",
        ("", "Yes.", 0),
    ),
    "ernie: calls": ("ernie", f"I look.\n</think>\n\n{ERNIE_CALLS}\n", ("I look.", "", 2)),
    "ernie: an answer and calls": (
        "ernie",
        f"So.\n</think>\n\n<response>\nWait.\n</response>\n\n{ERNIE_CALLS}\n",
        ("So.", "Wait.", 2),
    ),
    "hunyuan: reasoning and answer": (
        "hunyuan-a13b",
        "<think>\nI look.\n</think>\n<answer>\nWell,\n\nyes.\n</answer>",
        ("I look.", "Well,\n\nyes.", 0),
    ),
    "hunyuan: no thinking": (
        "hunyuan-a13b",
        "<think>\n\n</think>\n<answer>\nYes.\n</answer>\n",
        ("", "Yes.", 0),
    ),
    "hunyuan: the tags alone": ("hunyuan-a13b", "<answer>Yes.</answer>", ("", "Yes.", 0)),
    "hunyuan: nothing around it": ("hunyuan-a13b", "Yes.\n", ("", "Yes.\n", 0)),
    "hunyuan: calls": (
        "hunyuan-a13b",
        f"<think>\nI look.\n</think>\n<answer>\n{HUNYUAN_CALLS}\n</answer>",
        ("I look.", "", 2),
    ),
    "hunyuan: calls alone": ("hunyuan-a13b", HUNYUAN_CALLS, ("", "", 2)),
    "hunyuan: calls that it thinks of": (
        "hunyuan-a13b",
        f"<think>\nLike {HUNYUAN_CALLS}?\n</think>\n<answer>\nNo.\n</answer>",
        (f"Like {HUNYUAN_CALLS}?", "No.", 0),
    ),
    "hunyuan: as the assistant": (
        "hunyuan-a13b",
        "<think>\nSo.\n</think>\n<answer>\n助手：Yes, 助手：is me.\n</answer>",
        ("So.", "Yes, 助手：is me.", 0),
    ),
    "a tag in prose": (
        "hunyuan-a13b",
        "<answer>\nThe </answer> tag ends it.\n</answer>",
        ("", "The tag ends it.", 0),
    ),
    "cut off": ("hunyuan-a13b", "<think>\nSo.\n</think>\n<ans", ("So.", "<ans", 0)),
}


def read(name: str, text: str, cuts: list[int], tools: Any = TOOLS) -> list[Delta]:
    """Parse pieces of the text, after a prompt as the model's template makes it."""
    spec = SPECS[name]
    prompt = "<|im_start|>assistant\n<think>\n" if name == "ernie" else "Hi<|extra_0|>"
    need = ChatNeed(template=" ".join((*spec.shows, "<think>")))
    parser = Format(spec, need).parser(prompt, tools)
    at = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = (text[a:b] for a, b in zip(at, at[1:], strict=False))
    return [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()


def parts(found: list[Delta]) -> tuple[str, str, list[tuple[str, Any]]]:
    reasoning, content = (
        "".join(d.text for d in found if d.kind == kind) for kind in ("reasoning", "content")
    )
    return reasoning, content, [(d.name, json.loads(d.text)) for d in found if d.kind == "tool"]


@pytest.mark.parametrize(("name", "text", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_read_without_its_markers(
    name: str, text: str, expected: tuple[str, str, int]
) -> None:
    reasoning, content, count = expected
    for cuts in ([], list(range(len(text)))):
        assert parts(read(name, text, cuts)) == (reasoning, content, CALLS[:count])


@given(st.sampled_from(list(ANSWERS.values())), st.lists(st.integers(0, 999), max_size=8))
def test_chunks_make_no_difference(answer: tuple[str, str, Any], cuts: list[int]) -> None:
    name, text, _ = answer
    assert parts(read(name, text, cuts)) == parts(read(name, text, []))


@pytest.mark.parametrize("name", SPECS)
def test_without_tools_the_markers_are_dropped_too(name: str) -> None:
    opening, closing = SPECS[name].answer or ("", "")
    text = f"So.\n</think>\n{opening}\nYes.\n{closing}\n"
    text = text if name == "ernie" else f"<think>\n{text}"
    for cuts in ([], list(range(len(text)))):
        assert parts(read(name, text, cuts, tools=[])) == ("So.", "Yes.", [])


def test_without_tools_the_assistant_may_name_itself() -> None:
    deltas = read("hunyuan-a13b", "<answer>\n助手：yes\n</answer>", [], tools=[])
    assert parts(deltas) == ("", "助手：yes", [])
