from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.server_fakes import RESPONSE_TEMPLATE

from inferno.builtin import response_template
from inferno.builtin.response_template import ResponseFormat, ResponseParser
from inferno.contracts import AddedToken, ChatNeed, Delta

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def parser(prompt: str = PROMPT, tools: Any = TOOLS, parallel: bool = True) -> ResponseParser:
    return ResponseFormat(RESPONSE_TEMPLATE).parser(prompt, tools, parallel=parallel)


def read(parser: ResponseParser, *texts: str) -> list[Delta]:
    return [delta for text in texts for delta in parser.feed(text)] + parser.finish()


def joined(deltas: list[Delta]) -> list[tuple[str, str, str]]:
    """Neighbours of the same kind as one."""
    result: list[tuple[str, str, str]] = []
    for kind, text, name, _ in deltas:
        if result and result[-1][0] == kind != "tool":
            text = result.pop()[1] + text
        result.append((kind, text, name))
    return result


def test_a_reply_is_taken_apart() -> None:
    deltas = joined(read(parser(), f"<think>\nhm</think>\n\nSo: {CALL}\n{CALL}<|im_end|>"))
    call = ("tool", json.dumps({"a": 1}), "f")
    assert deltas == [("reasoning", "hm", ""), ("content", "So: ", ""), call, call]


def test_each_call_has_an_id_of_its_own() -> None:
    ids = [p.id for p in read(parser(), CALL + CALL)]
    assert len(set(ids)) == 2
    assert all(i.startswith("call_") for i in ids)


def test_only_the_first_call_is_kept_where_they_may_not_be_parallel() -> None:
    assert len(read(parser(parallel=False), CALL + CALL)) == 1


def test_without_tools_what_looks_like_a_call_is_content() -> None:
    assert joined(read(parser(tools=[]), CALL)) == [("content", CALL, "")]


def test_thinking_that_the_prompt_has_begun_is_reasoning() -> None:
    assert joined(read(parser(PROMPT + "<think>\n"), "hm</think>yes")) == [
        ("reasoning", "hm", ""),
        ("content", "yes", ""),
    ]


def test_thinking_that_the_prompt_has_ended_leaves_content() -> None:
    assert joined(read(parser(PROMPT + "<think>\n\n</think>\n\n"), "yes")) == [
        ("content", "yes", "")
    ]


@pytest.mark.parametrize(
    "broken",
    [
        '<tool_call>{"name": "f", "arg',
        "<tool_call>no json</tool_call>",
        "<tool_call>no json</tool_call> and more",
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>[1]</tool_call>",
    ],
)
def test_a_broken_call_comes_out_in_the_models_own_words(broken: str) -> None:
    assert joined(read(parser(), broken)) == [("content", broken, "")]


def test_what_came_before_a_broken_call_stays_what_it_was() -> None:
    deltas = joined(
        read(parser(), "<think>hm</think>", "So: ", CALL, "<tool_call>{", "</tool_call>", " end")
    )
    assert deltas == [
        ("reasoning", "hm", ""),
        ("content", "So: ", ""),
        ("tool", '{"a": 1}', "f"),
        ("content", "<tool_call>{</tool_call> end", ""),
    ]


REPLIES = [
    "plain",
    "<think>\n \na</think>\n  \nb",
    f"<think>a\nb</think>\n\nc {CALL}",
    f"{CALL}\n{CALL}",
    "x <tool_call>{bad</tool_call>y",
    "<thin",
]


@given(st.sampled_from(REPLIES), st.data())
def test_any_chunking_gives_the_same(reply: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(reply)), max_size=6)))
    chunks = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    assert joined(read(parser(), *chunks)) == joined(read(parser(), reply))


def test_a_checkpoint_without_a_template_has_another_format() -> None:
    assert response_template.matches(ChatNeed()) is None
    assert response_template.matches(ChatNeed(response_template=RESPONSE_TEMPLATE))


def test_markers_that_are_special_tokens_are_noticed() -> None:
    def build(special: bool) -> ResponseFormat:
        return response_template.build(
            ChatNeed(response_template=RESPONSE_TEMPLATE, token=lambda text: AddedToken(0, special))
        )

    assert build(True).writes_special(tools=False)
    assert not build(False).writes_special(tools=True)


def test_a_broken_template_is_found_before_the_first_request() -> None:
    with pytest.raises(ValueError, match="fields"):
        response_template.build(ChatNeed(response_template={"version": 1, "fields": {}}))
