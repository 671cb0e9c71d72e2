"""Structured output on the demo model: every answer matches, alone and in a batch, with and without
drafts, and nothing else changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from inferno import LLM, RequestOutput, SamplingParams
from inferno.contracts import GrammarSpec, ReasoningMarkers
from inferno.core.engine import Engine
from inferno.core.schedule.scheduler import Scheduler
from inferno.errors import InfernoError, RequestError
from inferno.request.structured_outputs import MAX_DEPTH, StructuredOutputsParams, grammar_spec

PROMPT = "def f(x):"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog", None]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", device="cpu", max_num_seqs=8) as llm:
        yield llm


def asking(structured: Any, **changes: Any) -> SamplingParams:
    values = {"max_tokens": 120, "temperature": 1.0, "seed": 1, **changes}
    return SamplingParams(structured_outputs=structured, **values)


def texts(outputs: Sequence[RequestOutput]) -> list[str]:
    return [each.text for output in outputs for each in output.outputs]


# --- what matches ---------------------------------------------------------------------------------

LEAVES = st.sampled_from(
    [
        ({"type": "boolean"}, lambda v: isinstance(v, bool)),
        ({"type": "null"}, lambda v: v is None),
        ({"enum": ["x", 3]}, lambda v: v in ("x", 3)),
        (
            {"type": "integer", "minimum": -5, "maximum": 20},
            lambda v: type(v) is int and -5 <= v <= 20,
        ),
        ({"type": "string", "maxLength": 4}, lambda v: isinstance(v, str) and len(v) <= 4),
        ({"type": "string", "pattern": "^[a-c]{1,3}$"}, lambda v: bool(re.fullmatch("[a-c]+", v))),
    ]
)


def arrays(item: Any) -> Any:
    schema, holds = item
    return (
        {"type": "array", "items": schema, "minItems": 1, "maxItems": 2},
        lambda v: isinstance(v, list) and 1 <= len(v) <= 2 and all(map(holds, v)),
    )


def objects(fields: Mapping[str, Any]) -> Any:
    schema = {
        "type": "object",
        "properties": {name: each for name, (each, _) in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }
    return (
        schema,
        lambda v: (
            isinstance(v, dict)
            and list(v) == list(fields)
            and all(holds(v[name]) for name, (_, holds) in fields.items())
        ),
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(arrays), st.dictionaries(st.sampled_from("abc"), inner, max_size=2).map(objects)
    ),
    max_leaves=4,
)


@settings(max_examples=15, deadline=None)
@given(drawn=st.lists(SCHEMAS, min_size=1, max_size=4), seed=st.integers(0, 2**31))
def test_every_answer_parses_and_validates(llm: LLM, drawn: list[Any], seed: int) -> None:
    """At a temperature at which the model writes noise."""
    params = [
        asking(
            {"json": schema, "disable_any_whitespace": temperature > 0},
            temperature=temperature,
            seed=seed,
            max_tokens=400,
        )
        for schema, _ in drawn
        for temperature in (0, 3.0)
    ]
    for output, (schema, holds) in zip(
        llm.generate([PROMPT] * len(params), params), [d for d in drawn for _ in "01"], strict=True
    ):
        [answer] = output.outputs
        if answer.finish_reason == "length":  # much whitespace
            assert len(answer.token_ids) == 400
            continue
        assert holds(json.loads(answer.text)), (schema, answer.text)


GRAMMARS = [
    ({"regex": r"\d{3}-[a-f]+\."}, r"\d{3}-[a-f]+\."),
    ({"choice": ["red", "green", 'say "blue"']}, r'red|green|say "blue"'),
    ({"grammar": 'start: ("a" | "bc")~2..4 "!"'}, r"(a|bc){2,4}!"),
    ({"grammar": 'root ::= item+ "."\nitem ::= [0-9] ","'}, r"([0-9],)+\."),
    (
        {
            "structural_tag": {
                "structures": [
                    {"begin": "(", "schema": {"type": "boolean"}, "end": ")"},
                ],
                "triggers": ["("],
            }
        },
        r"([^(]|\((true|false)\))*",
    ),
]


@pytest.mark.parametrize(("structured", "pattern"), GRAMMARS)
@pytest.mark.parametrize("temperature", [0, 1.0, 4.0])
def test_every_kind_of_grammar_holds(
    llm: LLM, structured: Any, pattern: str, temperature: float
) -> None:
    [output] = llm.generate(PROMPT, asking(structured, temperature=temperature, max_tokens=60))
    [answer] = output.outputs
    if answer.finish_reason == "stop":
        assert re.fullmatch(pattern, answer.text, re.DOTALL), answer.text
    else:
        assert answer.finish_reason == "length" and len(answer.token_ids) == 60


def test_an_answer_that_is_cut_ends_with_length(llm: LLM) -> None:
    [output] = llm.generate(PROMPT, asking({"regex": "a{50}"}, max_tokens=3))
    assert output.outputs[0].finish_reason == "length"
    assert set(output.outputs[0].text) == {"a"}


def test_stop_strings_and_minimum_lengths_stay(llm: LLM) -> None:
    [stopped] = llm.generate(PROMPT, asking({"regex": "abc;def"}, stop=(";",)))
    assert (stopped.outputs[0].text, stopped.outputs[0].stop_reason) == ("abc", ";")
    [short] = llm.generate(PROMPT, asking({"choice": ["a"]}, min_tokens=5, ignore_eos=True))
    assert short.outputs[0].text == "a", "a complete answer ends, whatever else is asked"
    [optional] = llm.generate(PROMPT, asking({"regex": "a*"}, ignore_eos=True, seed=3))
    assert set(optional.outputs[0].text) <= {"a"}


# --- alone, in a batch, with drafts ---------------------------------------------------------------

MIXED = [
    asking({"json": PERSON}, seed=1),
    SamplingParams(max_tokens=40, temperature=1.0, seed=2),
    asking({"regex": "[a-z]{3,30} [0-9]+"}, seed=3, temperature=2.0),
    asking({"json": PERSON}, temperature=0),
    SamplingParams(max_tokens=40, temperature=0),
    asking({"json": PERSON, "disable_any_whitespace": True}, seed=4, frequency_penalty=1.0),
    asking({"choice": ["one", "two"]}, n=3, seed=5, logprobs=1),
]


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[list[RequestOutput]]:
    return [llm.generate(PROMPT, params) for params in MIXED]


def test_constrained_and_free_rows_of_a_batch_equal_each_alone(
    llm: LLM, alone: list[list[RequestOutput]]
) -> None:
    together = llm.generate([PROMPT] * len(MIXED), MIXED)
    assert [texts([output]) for output in together] == [texts(outputs) for outputs in alone]


def test_suggested_drafts_change_no_text(
    llm: LLM, alone: list[list[RequestOutput]], monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = [output.num_accepted_tokens for outputs in alone for output in outputs]
    assert forced[0] and forced[5], "some text of a schema is forced"
    monkeypatch.setattr(Scheduler, "suggest", lambda *given: None)
    plain = [llm.generate(PROMPT, params) for params in MIXED]
    assert sum(output.num_draft_tokens for outputs in plain for output in outputs) == 0
    assert [texts(outputs) for outputs in plain] == [texts(outputs) for outputs in alone]


@pytest.mark.parametrize(
    "options",
    [{"speculative": "ngram"}, pytest.param({"max_model_len": 160}, marks=pytest.mark.slow)],
)
def test_speculation_and_preemption_change_no_text(
    alone: list[list[RequestOutput]], options: dict[str, Any]
) -> None:
    with LLM("demo", device="cpu", max_num_seqs=8, **options) as other:
        engine: Any = other._engine
        assert isinstance(engine, Engine)
        for _ in range(2):
            together = other.generate([PROMPT] * len(MIXED), MIXED)
            answers = [texts([output]) for output in together]
            assert answers == [texts(outputs) for outputs in alone]
        assert engine.stats().kv_usage == 0 and not engine._constraints.held


def test_a_preempted_request_goes_on_in_its_grammar(llm: LLM) -> None:
    engine: Any = llm._engine
    [plain] = llm.generate(PROMPT, MIXED[0])
    stream = llm.stream(PROMPT, MIXED[0])
    text = next(stream).text
    for delta in stream:
        text += delta.text
        engine._scheduler.drop_in_flight()
    assert text == plain.outputs[0].text


@pytest.mark.parametrize("early", [{"ignore_eos": True}, {"min_tokens": 4}])
def test_an_end_token_that_the_grammar_takes_is_not_text(llm: LLM, early: Any) -> None:
    """Also where it does not end the request by itself."""
    tokenizer = llm.preprocessor.tokenizer
    assert tokenizer is not None
    end = tokenizer.eos_token_ids[0]
    bias = {end: 100.0, tokenizer.encode("a", False)[0]: 50.0}
    spec = {"regex": "a|abbbb"}
    params = asking(spec, logit_bias=bias, skip_special_tokens=False, temperature=0, **early)
    [output] = llm.generate(PROMPT, params)
    assert output.outputs[0].text in ("a", "abbbb") and output.outputs[0].finish_reason == "stop"


# --- reasoning ------------------------------------------------------------------------------------

THINK = ReasoningMarkers(open="<think>", close="</think>", is_open=True)
DIGITS = GrammarSpec(kind="regex", text="[0-9]{2}")


def test_the_grammar_holds_after_reasoning_that_the_prompt_opened(llm: LLM) -> None:
    [end] = llm.preprocessor.tokenizer.encode("</think>", False)  # type: ignore[union-attr]
    spec = evolve(DIGITS, reasoning=THINK)
    params = asking(spec, logit_bias={end: 9.0}, max_tokens=300, skip_special_tokens=False)
    [output] = llm.generate("<think>", params)
    reasoning, mark, answer = output.outputs[0].text.partition("</think>")
    assert mark and re.fullmatch(r"\n{0,4}[0-9]{2}", answer)
    assert output.outputs[0].finish_reason == "stop"


def test_without_an_opened_reasoning_the_output_begins_with_it_or_with_the_answer(llm: LLM) -> None:
    tokenizer = llm.preprocessor.tokenizer
    assert tokenizer is not None
    ids = {name: tokenizer.encode(name, False)[0] for name in ("<think>", "</think>")}
    spec = evolve(DIGITS, reasoning=evolve(THINK, is_open=False))
    params = asking(spec, skip_special_tokens=False)
    [direct] = llm.generate(PROMPT, evolve(params, logit_bias={ids["<think>"]: -100.0}))
    assert re.fullmatch(r"\n{0,4}[0-9]{2}", direct.outputs[0].text)
    bias = {ids["<think>"]: 100.0, ids["</think>"]: 90.0}
    once = evolve(params, logit_bias=bias, bad_words=("<think><think>",))
    [thinking] = llm.generate(PROMPT, once)
    assert re.fullmatch(r"<think></think>\n{0,4}[0-9]{2}", thinking.outputs[0].text)


def test_reasoning_without_an_end_is_cut(llm: LLM) -> None:
    [end] = llm.preprocessor.tokenizer.encode("</think>", False)  # type: ignore[union-attr]
    spec = evolve(DIGITS, reasoning=THINK)
    [output] = llm.generate("<think>", asking(spec, logit_bias={end: -100.0}, max_tokens=30))
    assert output.outputs[0].finish_reason == "length", "no end token ends reasoning"


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("structured", "param"),
    [
        ({}, None),
        ({"json": {"type": "strng"}}, "structured_outputs.json"),
        (
            {"json": {"properties": {"a": {"type": "string", "pattern": "("}}}},
            "structured_outputs.json.properties.a",
        ),
        ({"json": "{"}, "structured_outputs.json"),
        ({"json": 5}, "structured_outputs.json"),
        ({"regex": "("}, "structured_outputs.regex"),
        ({"regex": 5}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": ["a", 1]}, "structured_outputs.choice[1]"),
        ({"grammar": "start: missing"}, "structured_outputs.grammar"),
        ({"grammar": "root ::= missing"}, "structured_outputs.grammar"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs"),
        ({"schema": {}}, "structured_outputs.schema"),
        ({"whitespace_pattern": " "}, "structured_outputs"),
        ({"regex": "a" * 300_000}, "structured_outputs.regex"),
        ("json", "structured_outputs"),
    ],
)
def test_a_bad_grammar_is_an_error_with_its_path(
    llm: LLM, structured: Any, param: str | None
) -> None:
    if param is None:
        assert grammar_spec(structured) is None
        return
    with pytest.raises(RequestError) as caught:
        llm.generate(PROMPT, asking(structured))
    assert caught.value.param == param and caught.value.remedy


def test_a_deep_schema_is_refused_without_recursion() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(RequestError, match=f"more than {MAX_DEPTH} levels"):
        SamplingParams(structured_outputs={"json": deep})
    while deep:  # freed level by level, as its destructor recurses
        deep = deep["a"]


def test_the_ways_to_ask_are_one_value() -> None:
    forms = [
        {"regex": "a"},
        {"regex": "a", "json": None, "disable_fallback": True},
        StructuredOutputsParams(regex="a"),
        GrammarSpec(kind="regex", text="a"),
    ]
    assert {SamplingParams(structured_outputs=each).structured_outputs for each in forms} == {
        GrammarSpec(kind="regex", text="a")
    }


def test_without_a_provider_the_error_says_what_to_install() -> None:
    with (
        LLM("demo", device="cpu", disable=("llguidance",)) as bare,
        pytest.raises(RequestError, match="nothing installed compiles") as caught,
    ):
        bare.generate(PROMPT, asking({"regex": "a"}))
    assert "inferno-llguidance" in caught.value.remedy


def test_a_grammar_that_fails_while_it_runs_ends_its_request_with_an_error(llm: LLM) -> None:
    """Never an answer without the grammar."""
    engine: Any = llm._engine
    stream = llm.stream(PROMPT, MIXED[0])
    next(stream)
    [constraint] = engine._constraints.held.values()
    constraint.fail("a limit was exceeded")
    with pytest.raises(InfernoError, match="a limit was exceeded"):
        list(stream)
    assert not engine._constraints.held and not engine.busy
