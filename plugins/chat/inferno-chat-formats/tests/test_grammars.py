"""The grammars accept what each family writes, and nothing with other tools or arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from chat_writing import Call, written

from inferno.contracts import AddedToken, ChatNeed
from inferno_chat_formats.families import FAMILIES
from inferno_chat_formats.output import Format
from inferno_chat_formats.spec import Slot, Spec, strings

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")

WITH_CALLS = [spec for spec in FAMILIES if spec.calls]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "item": {"$ref": "#/$defs/Item"},
    },
    "required": ["city", "days", "item"],
    "additionalProperties": False,
    "$defs": {
        "Item": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        }
    },
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "get_time"}},
]
CALL: Call = ("weather", {"city": "Graz", "days": 3, "item": {"a": 1}})
OTHER: Call = ("get_time", {})
FOREIGN: Call = ("fly", {"city": "Graz"})
WRONG: Call = ("weather", {"city": "Graz", "days": "three", "item": {"a": 1}})


class Vocabulary:
    """Bytes, the markers of a family as special tokens, and an end token."""

    def __init__(self, markers: Sequence[str], *, special: bool) -> None:
        self.markers = sorted({*markers}, key=len, reverse=True)
        names = [m.encode() for m in self.markers]
        self.tokens = [bytes([i]) for i in range(256)] + names + [b"<end>"]
        self.eos_token_id, self.bos_token_id = len(self.tokens) - 1, None
        self.special = special
        self.special_token_ids = [
            i for i in range(256, len(self.tokens)) if special or i == self.eos_token_id
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("only strings are tokenized")
        return list(text.encode())

    def encode(self, text: str) -> list[int]:
        for marker in self.markers if self.special else ():
            if marker in text:
                before, _, after = text.partition(marker)
                middle = 256 + self.markers.index(marker)
                return [*self.encode(before), middle, *self.encode(after)]
        return list(text.encode())

    def token(self, text: str) -> AddedToken | None:
        if text not in self.markers:
            return None
        return AddedToken(256 + self.markers.index(text), self.special)


def vocabulary_of(spec: Spec, *, special: bool) -> Vocabulary:
    parts = [
        part
        for calls in spec.calls
        for part in (calls.opening, calls.closing, *calls.call, *calls.parameter)
        if isinstance(part, str)
    ]
    markers = {m for part in parts for m in strings(part) if m[0] in "<[]" and m[-1] in ">]["}
    inner = {m for m in markers if not any(other in m for other in markers - {m})}
    return Vocabulary(sorted(inner), special=special)


def allows(grammar: str, vocabulary: Vocabulary, text: str) -> bool:
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary))
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = vocabulary.encode(text)
    return int(matcher.try_consume_tokens(ids)) == len(ids) and bool(matcher.is_accepting())


def grammar_of(spec: Spec, vocabulary: Vocabulary, tools: Any = TOOLS, **options: Any) -> str:
    need = ChatNeed(template=" ".join(spec.shows), token=vocabulary.token)
    grammar = Format(spec, need).call_grammar(tools, **options)
    assert grammar is not None
    return grammar


@pytest.mark.parametrize("special", [True, False], ids=["special", "text"])
@pytest.mark.parametrize("spec", WITH_CALLS, ids=lambda spec: spec.name)
def test_a_required_call_is_allowed_and_nothing_else(spec: Spec, special: bool) -> None:
    vocabulary = vocabulary_of(spec, special=special)
    grammar = grammar_of(spec, vocabulary)
    assert allows(grammar, vocabulary, written(spec, [CALL]))
    assert allows(grammar, vocabulary, written(spec, [OTHER]))
    assert not allows(grammar, vocabulary, written(spec, [FOREIGN]))
    assert not allows(grammar, vocabulary, written(spec, [WRONG]))
    assert not allows(grammar, vocabulary, "no")


@pytest.mark.parametrize("spec", WITH_CALLS, ids=lambda spec: spec.name)
def test_calls_in_parallel_can_be_ruled_out(spec: Spec) -> None:
    first = spec.calls[0]
    if not (first.repeated or Slot.OBJECTS in first.call) or first.bare:
        pytest.skip("the family writes one call per answer")
    vocabulary = vocabulary_of(spec, special=True)
    text = written(spec, [CALL, OTHER])
    assert allows(grammar_of(spec, vocabulary), vocabulary, text)
    assert not allows(grammar_of(spec, vocabulary, parallel=False), vocabulary, text)


@pytest.mark.parametrize(
    "special", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["special", "text"]
)
@pytest.mark.parametrize("spec", WITH_CALLS, ids=lambda spec: spec.name)
def test_a_call_that_may_be_made_is_held_to_strict_schemas(spec: Spec, special: bool) -> None:
    vocabulary = vocabulary_of(spec, special=special)
    need = ChatNeed(template=" ".join(spec.shows), token=vocabulary.token)
    grammar = Format(spec, need).call_grammar(TOOLS, choice="auto")
    if spec.calls[0].bare:
        assert grammar is None
        return
    assert grammar is not None
    lead = "" if spec.parser != "tagged" else "I look. "
    assert allows(grammar, vocabulary, "no call")
    assert allows(grammar, vocabulary, written(spec, [CALL], lead))
    assert not allows(grammar, vocabulary, written(spec, [WRONG], lead))
    loose = ("get_time", {"zone": "x"})
    assert allows(grammar, vocabulary, written(spec, [loose], lead))


OBJECTS = [s for s in WITH_CALLS if {Slot.OBJECT, Slot.OBJECTS} & {*s.calls[0].call}]


@pytest.mark.parametrize("spec", OBJECTS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        (', "days"', ' , "days"'),
        (', "days"', ',\n"days"'),
        (', "days"', ',\t"days"'),
        (', "days"', ',  "days"'),
        ('"days": ', '"days" : '),
        ('"days": ', '"days":\n'),
        ('{"city"', '{\n"city"'),
    ],
)
def test_a_call_has_blanks_only_after_commas_and_colons(spec: Spec, where: str, wrong: str) -> None:
    vocabulary = vocabulary_of(spec, special=True)
    grammar, text = grammar_of(spec, vocabulary), written(spec, [CALL])
    assert text.count(where) == 1
    assert allows(grammar, vocabulary, text.replace(where, where.replace(" ", "")))
    assert not allows(grammar, vocabulary, text.replace(where, wrong))


def test_calls_in_a_list_have_no_blank_before_a_comma() -> None:
    [spec] = [spec for spec in FAMILIES if spec.name == "mistral"]
    vocabulary = vocabulary_of(spec, special=True)
    grammar, text = grammar_of(spec, vocabulary), written(spec, [CALL, OTHER])
    for between, allowed in ((", {", True), (",\n {", True), (" , {", False), (",\n\n{", False)):
        assert text.count(", {") == 1
        assert allows(grammar, vocabulary, text.replace(", {", between)) == allowed


def test_tools_may_have_definitions_of_the_same_name() -> None:
    def tool(name: str, type: str) -> dict[str, Any]:
        schema = {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/T"}},
            "required": ["x"],
            "$defs": {"T": {"type": type}},
        }
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    [spec] = [spec for spec in FAMILIES if spec.name == "hermes"]
    vocabulary = vocabulary_of(spec, special=True)
    grammar = grammar_of(spec, vocabulary, [tool("a", "integer"), tool("b", "string")])
    assert allows(grammar, vocabulary, written(spec, [("a", {"x": 1}), ("b", {"x": "y"})]))
    assert not allows(grammar, vocabulary, written(spec, [("a", {"x": "y"})]))


def test_one_of_is_read_as_any_of() -> None:
    """As in a response format, branches need not be disjoint."""
    value = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}
    parameters = {"type": "object", "properties": {"x": value}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    [spec] = [spec for spec in FAMILIES if spec.name == "hermes"]
    vocabulary = vocabulary_of(spec, special=True)
    grammar = grammar_of(spec, vocabulary, tools)
    assert allows(grammar, vocabulary, written(spec, [("f", {"x": "ab"})]))
    assert not allows(grammar, vocabulary, written(spec, [("f", {"x": 1})]))


def test_a_marker_that_the_prompt_ends_with_is_not_written_again() -> None:
    [spec] = [spec for spec in WITH_CALLS if spec.prompt_tail]
    vocabulary = vocabulary_of(spec, special=True)
    grammar = grammar_of(spec, vocabulary, prompt=f"user{spec.prompt_tail}")
    text = written(spec, [CALL, OTHER])
    assert allows(grammar, vocabulary, text.removeprefix(spec.prompt_tail))
    assert not allows(grammar, vocabulary, text)


def test_names_are_escaped() -> None:
    [spec] = [spec for spec in FAMILIES if spec.name == "glm4"]
    vocabulary = vocabulary_of(spec, special=True)
    name = 'we"ird\\x'
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}}]
    grammar = grammar_of(spec, vocabulary, tools)
    assert json.dumps(name) in grammar
    assert allows(grammar, vocabulary, written(spec, [(name, {})]))
