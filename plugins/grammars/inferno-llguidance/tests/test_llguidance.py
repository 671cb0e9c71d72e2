from __future__ import annotations

import json
from typing import Any

import attrs
import numpy as np
import pytest

from inferno.contracts import GrammarProvider, GrammarSpec, MaskRequest, Vocabulary
from inferno.errors import GrammarError
from inferno.testing import GrammarProviderTests, load_catalog

END = 256
VOCABULARY = Vocabulary(
    tokens=[*(bytes([i]) for i in range(256)), b"<|end|>"],
    special=frozenset({END}),
    end=(END,),
    encode=lambda text: list(text.encode()),
)


class TestLLGuidance(GrammarProviderTests):
    provider = "llguidance"


@pytest.fixture(scope="module")
def compiler() -> Any:
    return load_catalog().named(GrammarProvider, "llguidance").item.build(VOCABULARY)


def matches(compiler: Any, spec: GrammarSpec, text: str) -> bool:
    matcher = compiler.compile(spec)
    return all(matcher.accept(byte) for byte in text.encode()) and (
        matcher.is_done or matcher.count_valid([END]) == 1
    )


def schema(value: object, **options: Any) -> GrammarSpec:
    return GrammarSpec(kind="json_schema", text=json.dumps(value), **options)


def test_whitespace_in_json_is_bounded_unless_the_caller_says_otherwise(compiler: Any) -> None:
    pair = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
    for text in ("[1,1]", "[1, 1]", "[\n  1,\n  1\n]"):
        assert matches(compiler, schema(pair), text)
    assert not matches(compiler, schema(pair), "[1,      1]")
    assert matches(compiler, schema(pair, whitespace=r" +"), "[1,      1]")
    assert matches(compiler, schema(pair, whitespace=""), "[1,1]")
    assert not matches(compiler, schema(pair, whitespace=""), "[1, 1]")


def test_a_schema_of_true_is_any_json_and_one_of_false_is_refused(compiler: Any) -> None:
    assert matches(compiler, schema(True), '{"a": [1, null]}')
    assert not matches(compiler, schema(True), "no")
    with pytest.raises(GrammarError, match="false matches nothing"):
        compiler.compile(schema(False))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"type": "strng"}, ""),
        ({"properties": {"a": {"type": "strng"}}}, "properties.a"),
        ({"type": "object", "properties": {"a": {"items": {"not": {}}}}}, "properties.a.items"),
        ({"anyOf": [{"type": "string"}, {"type": "string", "pattern": "("}]}, "anyOf[1]"),
        ({"$defs": {"x": {"multipleOf": 1e9}}, "$ref": "#/$defs/x"}, "$defs.x.multipleOf"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "properties.a"),
    ],
)
def test_an_error_names_the_path_to_the_part_at_fault(
    compiler: Any, value: object, path: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(schema(value))
    assert caught.value.path == path and "\n" not in caught.value.cause


@pytest.mark.parametrize("text", ["a\\", "(?=a)b", r"\bword", "(a)\\1"])
def test_regular_expressions_that_mean_something_else_are_refused(compiler: Any, text: str) -> None:
    with pytest.raises(GrammarError):
        compiler.compile(GrammarSpec(kind="regex", text=text))


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [("a/b", "a/b", "a"), (r"a\/b", "a/b", "ab"), ("^abc$", "abc", "^abc$"), ("é.", "éx", "e")],
)
def test_a_regular_expression_matches_the_whole_output(
    compiler: Any, text: str, yes: str, no: str
) -> None:
    spec = GrammarSpec(kind="regex", text=text)
    assert matches(compiler, spec, yes) and not matches(compiler, spec, no)


@pytest.mark.parametrize(
    "text", ["[a-z ]{3,9}", "[A-Za-z0-9 ,.']*", r"[a-z]{1,4}\d+", "(?s:.{2,5})"]
)
def test_a_mask_has_the_tokens_that_may_follow_whatever_is_sliced(text: str) -> None:
    """Words of several lengths, of which the slices take some together."""
    words = ["word", " word", "two words", "Word", "7", "a long line of words, and more", "wo\nrd"]
    tokens = [*VOCABULARY.tokens, *[word.encode() for word in words]]
    vocabulary = attrs.evolve(VOCABULARY, tokens=tokens)
    compiler = load_catalog().named(GrammarProvider, "llguidance").item.build(vocabulary)
    matcher = compiler.compile(GrammarSpec(kind="regex", text=text))
    for token_id in (None, ord("a"), ord("b")):
        assert token_id is None or matcher.accept(token_id)
        mask = np.zeros((1, -(-len(tokens) // 32)), np.int32)
        compiler.fill([MaskRequest(matcher, (), 0)], mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(tokens)]
        followed = [matcher.count_valid([i]) for i in range(len(tokens))]
        assert bits.tolist() == followed


def test_choices_are_taken_literally(compiler: Any) -> None:
    choices = ['say "hi"', "a\\b", "line\nbreak", "ünï", "/x/"]
    spec = GrammarSpec(kind="choice", text=json.dumps(choices))
    for choice in choices:
        assert matches(compiler, spec, choice)
    assert not matches(compiler, spec, "a")


def test_there_may_be_many_choices_of_which_some_begin_alike(compiler: Any) -> None:
    spec = GrammarSpec(kind="choice", text=json.dumps([f"a{i}" for i in range(10_000)]))
    for choice in ("a7", "a70", "a9999"):
        assert matches(compiler, spec, choice)
    assert not matches(compiler, spec, "a10000")


def test_a_grammar_that_matches_nothing_is_refused(compiler: Any) -> None:
    with pytest.raises(GrammarError, match="matches nothing"):
        compiler.compile(GrammarSpec(kind="lark", text="start: a\na: a"))


def test_a_grammar_that_exceeds_a_limit_is_refused(compiler: Any) -> None:
    rules = [f"A{i}: A{i + 1} A{i + 1}" for i in range(40)]
    text = "\n".join(["start: A0", *rules, 'A40: "x"'])  # one terminal of 2**40 characters
    with pytest.raises(GrammarError, match="too big"):
        compiler.compile(GrammarSpec(kind="lark", text=text))


def test_a_model_without_an_end_token_has_no_grammars() -> None:
    build = load_catalog().named(GrammarProvider, "llguidance").item.build
    endless = Vocabulary(tokens=[b"a"], special=frozenset(), end=(), encode=lambda text: [0])
    with pytest.raises(GrammarError, match="no end token"):
        build(endless)
