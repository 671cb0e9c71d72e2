"""Every family: what it writes is what is read, however it arrives, whole or broken."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from chat_writing import Call, written
from hypothesis import given, settings
from hypothesis import strategies as st

from inferno.contracts import ChatNeed, Delta
from inferno_chat_formats.families import FAMILIES
from inferno_chat_formats.output import Format
from inferno_chat_formats.spec import Slot, Spec

WITH_CALLS = [spec for spec in FAMILIES if spec.calls]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("weather", "get_time")
]
CALL: Call = ("weather", {"city": "Graz", "days": 3, "exact": True, "tags": ["a", "b c"]})
OTHER: Call = ("get_time", {"city": "São Paulo"})


def format_of(spec: Spec) -> Format:
    markers = " ".join(marker for pair in spec.reasoning for marker in pair)
    return Format(spec, ChatNeed(template=f"{' '.join(spec.shows)} {markers}"))


def read(
    spec: Spec, text: str, cuts: Iterable[int] = (), tools: Any = TOOLS, **options: Any
) -> list[Delta]:
    return joined(fed(spec, text, cuts, tools, **options))


def fed(
    spec: Spec, text: str, cuts: Iterable[int] = (), tools: Any = TOOLS, **options: Any
) -> list[Delta]:
    parser = format_of(spec).parser("", tools, **options)
    at = [0, *sorted({c % (len(text) + 1) for c in cuts}), len(text)]
    deltas = [d for a, b in zip(at, at[1:], strict=False) for d in parser.feed(text[a:b])]
    return deltas + parser.finish()


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """Neighbours of one kind as one, and calls without their ids."""
    runs: list[Delta] = []
    for delta in deltas:
        if runs and runs[-1].kind == delta.kind != "tool":
            runs[-1] = runs[-1]._replace(text=runs[-1].text + delta.text)
        else:
            runs.append(delta._replace(id=""))
    return runs


def calls_in(deltas: Iterable[Delta]) -> list[tuple[str, Any]]:
    return [(d.name, json.loads(d.text)) for d in deltas if d.kind == "tool"]


def text_in(deltas: Iterable[Delta], kind: str = "content") -> str:
    return "".join(d.text for d in deltas if d.kind == kind)


def may_repeat(spec: Spec) -> bool:
    first = spec.calls[0]
    return first.repeated or Slot.OBJECTS in first.call or Slot.PYTHON in first.call


@pytest.mark.parametrize("spec", WITH_CALLS, ids=lambda spec: spec.name)
def test_a_call_is_read(spec: Spec) -> None:
    for which in range(len(spec.calls)):
        deltas = read(spec, written(spec, [CALL], which=which))
        assert (calls_in(deltas), text_in(deltas)) == ([CALL], "")


@pytest.mark.parametrize("spec", WITH_CALLS, ids=lambda spec: spec.name)
def test_calls_in_parallel_are_read_and_counted(spec: Spec) -> None:
    if not may_repeat(spec):
        pytest.skip("the family writes one call per answer")
    text = written(spec, [CALL, OTHER])
    assert calls_in(read(spec, text)) == [CALL, OTHER]
    assert calls_in(read(spec, text, parallel=False)) == [CALL]


@pytest.mark.parametrize("spec", WITH_CALLS, ids=lambda spec: spec.name)
def test_content_comes_before_calls(spec: Spec) -> None:
    if spec.calls[0].bare or spec.parser != "tagged":
        pytest.skip("its calls are the whole answer, or a message of their own")
    deltas = read(spec, written(spec, [CALL], "I look.\n"))
    assert [d.kind for d in deltas] == ["content", "tool"]
    assert deltas[0].text == "I look."


@pytest.mark.parametrize("spec", WITH_CALLS, ids=lambda spec: spec.name)
def test_without_tools_a_call_is_content(spec: Spec) -> None:
    if spec.parser != "tagged":
        pytest.skip("see test_messages")
    text = written(spec, [CALL])
    deltas = read(spec, text, tools=[])
    assert [d.kind for d in deltas] == ["content"] and deltas[0].text == text


@pytest.mark.parametrize("spec", [s for s in FAMILIES if s.reasoning], ids=lambda spec: spec.name)
def test_reasoning_is_taken_out(spec: Spec) -> None:
    if spec.parser != "tagged":
        pytest.skip("see test_messages")
    opening, closing = spec.reasoning[0]
    chat = format_of(spec)
    text = f"{opening}so\n\nand so{closing}yes"
    deltas = read(spec, text)
    assert (text_in(deltas, "reasoning"), text_in(deltas)) == ("so\n\nand so", "yes")
    assert chat.opens_reasoning(f"prompt {opening}") and not chat.opens_reasoning(f"{opening} x")
    parser = chat.parser(f"prompt {opening}", TOOLS)
    deltas = joined([*parser.feed(f"so\n\nand so{closing}yes"), *parser.finish()])
    assert (text_in(deltas, "reasoning"), text_in(deltas)) == ("so\n\nand so", "yes")


NAMES = st.sampled_from(["weather", "get_time"])
TEXTS = st.text(
    st.characters(exclude_characters="<>[]{}|\\\"'`｜", exclude_categories=["Cs", "Cc"])
)
ARGUMENTS = st.fixed_dictionaries(
    {"city": TEXTS},
    optional={
        "days": st.integers(-(10**12), 10**12),
        "exact": st.booleans(),
        "tags": st.lists(TEXTS, max_size=3),
    },
)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3)
CUTS = st.lists(st.integers(0, 2000), max_size=8)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(WITH_CALLS), CALLS, CUTS)
def test_what_is_written_is_read(spec: Spec, calls: list[Call], cuts: list[int]) -> None:
    calls = calls if may_repeat(spec) else calls[:1]
    deltas = read(spec, written(spec, calls), cuts)
    assert calls_in(deltas) == calls
    assert text_in(deltas).strip() == ""


SENTINELS = st.sampled_from(
    ["ZQX", "<tool_call>", "{", "}", '"', "<think>", "</think>", "\n", "[", "<|"]
)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(
    st.sampled_from(FAMILIES),
    CALLS,
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 30), SENTINELS), max_size=3),
    st.integers(0, 4000),
    CUTS,
)
def test_any_chunking_of_a_broken_answer_gives_the_same_and_loses_nothing(
    spec: Spec,
    calls: list[Call],
    edits: list[tuple[int, int, str]],
    length: int,
    cuts: list[int],
) -> None:
    text = written(spec, calls, "first ") if spec.calls else "first <think>x</think> y"
    for at, removed, added in edits:
        at %= len(text) + 1
        text = text[:at] + added + text[at + removed :]
    text = text[:length]
    whole = read(spec, text)
    assert read(spec, text, cuts) == whole
    assert read(spec, text, range(len(text))) == whole
    kept = "".join(d.text + d.name for d in whole)
    ids = " ".join(d.id.replace(d.name, "", 1) for d in fed(spec, text))  # some repeat the name
    count, expected = kept.count("ZQX") + ids.count("ZQX"), text.count("ZQX")
    # A call's recipient repeats its name: the name decides where they differ.
    repeated = re.findall(r" to=([^<]*)", text) if spec.parser == "recipients" else []
    least = expected - sum(recipient.count("ZQX") for recipient in repeated)
    assert least <= count <= expected, "a word of the answer is lost"
    if not calls_in(whole) and "ZQX" not in text and spec.parser == "tagged":
        dropped = [*spec.around, *(m.strip() for pair in spec.reasoning for m in pair)]
        pattern = "|".join(map(re.escape, dropped)) or r"(?!)"
        assert squeezed(re.sub(pattern, "", kept)) == squeezed(re.sub(pattern, "", text))
        if not re.search(pattern, text):
            assert kept == text, "white space is lost"


@pytest.mark.parametrize("spec", WITH_CALLS, ids=lambda spec: spec.name)
def test_white_space_before_a_marker_that_begins_no_call_stays(spec: Spec) -> None:
    marker = spec.calls[0].marker
    if not marker or spec.parser != "tagged":
        pytest.skip("it has no marker, or its own messages")
    text = f"Use the\n\n{marker} tag, \n {marker}"
    for cuts in ((), range(len(text))):
        assert read(spec, text, cuts) == [Delta("content", text)]


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_no_marker_is_inside_of_another_one() -> None:
    """A marker that ends later would be missed, or not, by the chunking."""
    for spec in FAMILIES:
        markers = {m for c in spec.calls for m in (c.marker, c.opening.strip()) if m} | {
            *spec.around
        }
        for one in markers:
            for other in markers - {one}:
                assert one.find(other) < 1, (spec.name, one, other)


def test_names_are_unique() -> None:
    assert len({spec.name for spec in FAMILIES}) == len(FAMILIES)


def test_a_marker_that_begins_a_call_in_open_reasoning_is_known() -> None:
    """Reasoning under a grammar must not contain it."""
    [spec] = [spec for spec in FAMILIES if spec.call_ends_reasoning]
    section, call = "<|tool_calls_section_begin|>", "<|tool_call_begin|>"
    assert list(format_of(spec).call_markers) == [section, call]
    assert format_of(spec).call_ends_reasoning
    rest = 'functions.weather:0<|tool_call_argument_begin|>{"city": "Graz"}<|tool_call_end|>'
    for markers in (section + call, call):
        deltas = read(spec, f"<think>I look.{markers}{rest}")
        assert calls_in(deltas) == [("weather", {"city": "Graz"})]


def test_a_recipient_ends_where_a_broken_marker_begins() -> None:
    [spec] = [spec for spec in FAMILIES if spec.parser == "channels"]
    text = "to=functions.weather<ZQX|channel|>commentary json<|message|>{}<|call|>"
    assert "ZQX" in text_in(read(spec, text))
