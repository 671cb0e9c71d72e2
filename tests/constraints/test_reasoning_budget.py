"""A budget of reasoning: the closing marker comes after that many tokens, and nothing else
changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferno import LLM, SamplingParams
from inferno.constraints import Grammars
from inferno.constraints.budget import BudgetConstraint
from inferno.constraints.constraint import ReasoningTokens
from inferno.contracts import GrammarSpec, ReasoningMarkers, Vocabulary
from inferno.llm.preprocessor import Preprocessor

END = 256


def encode(text: str) -> Sequence[int]:
    return list(text.encode())


VOCABULARY = Vocabulary(
    tokens=[*(bytes([i]) for i in range(256)), b"<end>"],
    special=frozenset({END}),
    end=(END,),
    encode=encode,
)


def budget_of(
    tokens: int, *, is_open: bool = False, ends: Sequence[bytes] = ()
) -> BudgetConstraint:
    markers = ReasoningMarkers(open="<t>", close="</t>", is_open=False)
    marks = ReasoningTokens.of(VOCABULARY, markers)
    return BudgetConstraint(None, marks, tuple(encode("</t>")), tokens, is_open, ends)


def allowed(constraint: BudgetConstraint) -> set[int]:
    mask_NW = np.zeros((1, 9), np.int32)
    assert constraint.fill((), mask_NW) is None
    constraint.finish_fill(mask_NW)
    bits = np.unpackbits(mask_NW.view(np.uint8), bitorder="little")
    return {int(i) for i in np.flatnonzero(bits)}


def write(constraint: BudgetConstraint, wanted: str) -> str:
    """What a model writes that wants to write this."""
    written, rest = b"", wanted.encode()
    while rest:
        tokens = allowed(constraint)
        if rest[0] in tokens:
            token, rest = rest[0], rest[1:]
        else:
            [token] = tokens
        assert constraint.accept(token)
        written += bytes([token])
    return written.decode()


@pytest.mark.parametrize(
    ("tokens", "wanted", "written"),
    [
        (3, "<t>abcdef", "<t>abc</t>def"),
        (0, "<t>abc", "<t></t>abc"),
        (9, "<t>abc</t>def and more", "<t>abc</t>def and more"),
        (3, "no reasoning at all", "no reasoning at all"),
        (3, "<b>abcdef", "<b>abcdef"),
    ],
)
def test_reasoning_ends_after_its_budget(tokens: int, wanted: str, written: str) -> None:
    assert write(budget_of(tokens), wanted) == written


def test_reasoning_that_the_prompt_has_opened_counts_from_the_first_token() -> None:
    assert write(budget_of(3, is_open=True), "abcdef") == "abc</t>def"


def test_a_call_that_ends_reasoning_ends_the_budget_too() -> None:
    """As of Kimi-K2, which calls tools without closing its reasoning."""
    text = "ab<call>a long call</call>"
    assert write(budget_of(12, is_open=True, ends=[b"<call>"]), text) == text
    assert write(budget_of(12, is_open=True), text) == "ab<call>a lo</t>ng call</call>"


@pytest.mark.parametrize("ends", [True, False, None])
def test_the_format_says_whether_calls_end_reasoning(ends: bool | None) -> None:
    stub: Any = SimpleNamespace(
        reasoning=("<t>", "</t>"), call_markers=["<call>"], opens_reasoning=lambda prompt: True
    )
    if ends is not None:
        stub.call_ends_reasoning = ends
    text = Preprocessor(tokenizer=None, max_model_len=64, vocab_size=257)
    params = text.reasoned(SamplingParams(thinking_token_budget=3), stub, "<t>")
    assert params.reasoning is not None and params.reasoning.calls_end is bool(ends)
    grammars = Grammars({}, lambda: VOCABULARY)
    constraint = grammars.constraint_of(params)
    assert isinstance(constraint, BudgetConstraint)
    assert list(constraint.closers) == ([b"<call>"] if ends else [])


def test_the_closing_marker_is_known_ahead_and_drafts_stay_within_the_budget() -> None:
    constraint = budget_of(4, is_open=True)
    assert constraint.count_valid(encode("abcdef")) == 3
    for token in encode("abcd"):
        constraint.accept(token)
    assert constraint.forced() == tuple(encode("</t>"))
    assert constraint.count_valid(encode("x")) == 0


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 8}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def test_a_model_is_held_to_a_budget_and_to_a_call() -> None:
    question = [{"role": "user", "content": "What is 12 + 30?"}]
    with LLM("demo", memory="2GiB", chat_format="hermes") as llm:
        style = llm.preprocessor.chat_format()
        assert style is not None
        free, short = (
            llm.chat(
                question,
                SamplingParams(max_tokens=60, temperature=0, thinking_token_budget=budget),
                chat_template_kwargs={"enable_thinking": True},
            )[0].outputs[0]
            for budget in (None, 3)
        )
        assert free.text.startswith("<think>\nI compute") and "</think>" in free.text
        thought = short.text.partition("</think>")[0]
        assert free.text.startswith(thought) and len(thought) < len("<think>\nI compute 12")

        grammar = style.call_grammar(TOOLS)
        assert grammar is not None
        spec = GrammarSpec(kind="lark", text=grammar)
        params = SamplingParams(max_tokens=200, temperature=0, structured_outputs=spec)
        text = llm.chat(question, params, tools=TOOLS)[0].outputs[0].text
        parser = style.parser("", TOOLS)
        [call] = [d for d in [*parser.feed(text), *parser.finish()] if d.kind == "tool"]
        assert call.name == "weather" and json.loads(call.text).keys() == {"city"}
