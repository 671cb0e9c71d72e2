"""Whitespace in JSON: where people write it, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from inferno.contracts import GrammarProvider, GrammarSpec, MaskRequest, Vocabulary
from inferno.testing import load_catalog

WORDS = [
    *["  ", "    ", "\n", "\n  ", "\n    ", "\t\t", "\n\n", " ,", "\n,", '"\n', "}\n", '",', '": '],
    *[
        '": "',
        '"},',
        "},\n",
        '"\n}',
        " }",
        "\n]",
        ",\n    ",
        ' "',
        " 1",
        "1,",
        "},",
        "[{",
        '{"',
        "]}",
    ],
]
END = 256 + len(WORDS)
VOCABULARY = Vocabulary(
    tokens=[*(bytes([i]) for i in range(256)), *(w.encode() for w in WORDS), b"<|end|>"],
    special=frozenset({END}),
    end=(END,),
    encode=lambda text: list(text.encode()),
)
SCHEMA = {
    "type": "object",
    "properties": {
        "a b": {"type": "integer"},
        "list": {"type": "array", "items": {"$ref": "#/$defs/part"}},
        "c": {"type": "boolean"},
    },
    "required": ["a b", "list"],
    "additionalProperties": False,
    "$defs": {
        "part": {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "n": {"type": "array", "items": {"type": "null"}},
            },
            "required": ["s"],
            "additionalProperties": False,
        }
    },
}
VALUE = {"a b": 12, "list": [{"s": 'x , "\\ :\n\n y'}, {"s": "", "n": []}], "c": True}
KINDS = [
    GrammarSpec(kind="json_schema", text=json.dumps(SCHEMA)),
    GrammarSpec(kind="json_object"),
    GrammarSpec(kind="json_schema", text="true"),
]
SEPARATE: list[dict[str, Any]] = [
    {},
    {"separators": (",", ":")},
    {"separators": (", ", ":")},
    {"indent": 2},
    {"indent": 4},
    {"indent": "\t"},
    {"indent": 0},
]


@pytest.fixture(scope="module")
def compiler() -> Any:
    return load_catalog().named(GrammarProvider, "llguidance").item.build(VOCABULARY)


def masks_of(compiler: Any, matcher: Any, drafts: list[int]) -> list[set[int]]:
    mask = np.zeros((1 + len(drafts), -(-len(VOCABULARY.tokens) // 32)), np.int32)
    compiler.fill([MaskRequest(matcher, drafts, 0)], mask)
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


def writes(compiler: Any, spec: GrammarSpec, token_ids: list[int]) -> bool:
    """Whether the grammar allows these tokens, by its masks and by all that a matcher says."""
    matcher, drafted = compiler.compile(spec), compiler.compile(spec)
    token_ids = [*token_ids, END]
    count = drafted.count_valid(token_ids)
    for i, token_id in enumerate(token_ids):
        [mask] = masks_of(compiler, matcher, [])
        assert (token_id in mask) == (i < count)
        if token_id == END:
            return True
        if matcher.accept(token_id) != (token_id in mask):
            raise AssertionError(f"accept and the mask differ at {i}")
        if token_id not in mask:
            return False
    raise AssertionError


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def greedily(text: str) -> list[int]:
    """The longest tokens first, as a tokenizer writes it."""
    data, ids = text.encode(), list[int]()
    while data:
        best = max((t for t in VOCABULARY.tokens if data.startswith(t)), key=len)
        ids.append(VOCABULARY.tokens.index(best))
        data = data[len(best) :]
    return ids


@pytest.mark.parametrize("spec", KINDS, ids=["schema", "object", "any"])
@pytest.mark.parametrize("options", SEPARATE, ids=str)
def test_json_is_compact_or_indented(
    compiler: Any, spec: GrammarSpec, options: dict[str, Any]
) -> None:
    assert writes(compiler, spec, bytes_of(json.dumps(VALUE, **options)))


@pytest.mark.parametrize("spec", KINDS, ids=["schema", "object", "any"])
@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        ('{"a b"', " :"),
        ('{"a b"', "\n:"),
        ('{"a b":', "\n"),
        ('{"a b":', "\t"),
        ('{"a b":', "  "),
        ('{"a b": 1', " ,"),
        ('{"a b": 1', "\n,"),
        ('{"a b": 1', "\t,"),
        ('{"a b": 1,', "\t"),
        ('{"a b": 1,', "\n\n"),
        ('{"a b": 1,', "\n" + "\t" * 5),
        ('{"a b": 1,', "\n" + " " * 20),
        ('{"a b": 1,', "\n \t"),
        ('{"a b": 1, "list": [{"s": "x"', "\n,"),
        ('{"a b": 1, "list": [{"s": "x"}', " ,"),
        ('{"a b": 1, "list": []', "\n,"),
        ('{"a b": 1, "list": [', "\n\n"),
        ("{", "\n\n"),
        ("", " "),
    ],
)
def test_blanks_are_only_where_json_is_usually_written_with_them(
    compiler: Any, spec: GrammarSpec, before: str, wrong: str
) -> None:
    matcher = compiler.compile(spec)
    assert all(matcher.accept(byte) for byte in before.encode())
    assert matcher.count_valid(bytes_of(wrong)) < len(wrong)
    assert not all(matcher.accept(byte) for byte in wrong.encode())


def test_a_line_break_that_a_comma_must_follow_is_not_begun(compiler: Any) -> None:
    """Else the mask after it would be empty."""
    matcher = compiler.compile(KINDS[0])
    breaks = {VOCABULARY.tokens.index(t) for t in (b"\n", b" ", b"\n  ", b"  ", b"\n\n")}
    for text, can_end in (('{"a b": 1', False), (', "list": []', True), (', "c": true', True)):
        assert all(matcher.accept(byte) for byte in text.encode())
        [mask] = masks_of(compiler, matcher, [])
        assert bool(mask & breaks) == can_end, text


@pytest.mark.parametrize("options", SEPARATE, ids=str)
def test_longer_tokens_are_taken_where_they_leave_a_way_on(
    compiler: Any, options: dict[str, Any]
) -> None:
    """A token of a value's end and a line break is not: its parts are."""
    matcher = compiler.compile(KINDS[0])
    token_ids = greedily(json.dumps(VALUE, **options))
    taken = 0
    for token_id in token_ids:
        if matcher.accept(token_id):
            taken += 1
            continue
        assert VOCABULARY.tokens[token_id] in (b'"\n', b"}\n", b"1,", b"  ", b"    ")
        assert all(matcher.accept(byte) for byte in VOCABULARY.tokens[token_id])
    assert matcher.is_done or END in masks_of(compiler, matcher, [])[0]
    assert taken > len(token_ids) / 2


def test_masks_after_drafts_are_those_of_the_same_tokens_accepted(compiler: Any) -> None:
    text = json.dumps(VALUE, indent=2)
    drafts = bytes_of(text)
    drafted = masks_of(compiler, compiler.compile(KINDS[0]), drafts)
    matcher = compiler.compile(KINDS[0])
    for i, token_id in enumerate(drafts):
        assert masks_of(compiler, matcher, []) == [drafted[i]], text[:i]
        assert matcher.accept(token_id)
    assert drafted[-1] == {END}


def test_a_vocabulary_without_single_brackets_still_ends(compiler: Any) -> None:
    """Where nothing that is in place can follow, the grammar alone decides."""
    tokens = [
        *[t for t in VOCABULARY.tokens[:256] if t not in (b"}", b",")],
        b"\n,",
        b"\n}",
        b"<|e|>",
    ]
    end = len(tokens) - 1
    vocabulary = Vocabulary(
        tokens=tokens,
        special=frozenset({end}),
        end=(end,),
        encode=lambda text: [tokens.index(bytes([b])) for b in text.encode()],
    )
    grammars = load_catalog().named(GrammarProvider, "llguidance").item.build(vocabulary)
    parts = {"s": {"type": "string"}, "t": {"type": "null"}}
    schema = {"type": "object", "properties": parts, "required": ["s", "t"]}
    closed = json.dumps({**schema, "additionalProperties": False})
    matcher = grammars.compile(GrammarSpec(kind="json_schema", text=closed))
    for text in ('{"s": "x"', '"t": null'):
        assert all(matcher.accept(tokens.index(bytes([byte]))) for byte in text.encode())
        assert matcher.accept(tokens.index(b"\n," if "x" in text else b"\n}"))
    assert matcher.is_done


def test_the_callers_own_whitespace_is_kept(compiler: Any) -> None:
    text = KINDS[0].text
    spec = GrammarSpec(kind="json_schema", text=text, whitespace=r"\s*")
    assert compiler.compile(spec).count_valid(bytes_of('{"a b" :\n\n1 ,')) == 13


TAG = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}


@pytest.mark.parametrize("options", SEPARATE[:3], ids=str)
def test_json_in_a_structural_tag_is_in_one_line(compiler: Any, options: dict[str, Any]) -> None:
    spec = GrammarSpec(kind="structural_tag", text=json.dumps(TAG))
    assert writes(compiler, spec, bytes_of(f"So: <a>{json.dumps(VALUE, **options)}</a>."))


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        ('{"a b": 1,', "  "),
        ('{"a b": 1,', "\n"),
        ('{"a b": 1,', "\t"),
        ('{"a b": 1', " ,"),
        ('{"a b": 1', "\n,"),
        ('{"a b"', " :"),
        ('{"a b":', "\n"),
        ('{"a b": 1, "list": [{"s": "x"}', " ,"),
        ('{"a b": 1, "list": []', "\n}"),
        ("{", "\n"),
    ],
)
def test_json_in_a_structural_tag_has_no_other_blanks(
    compiler: Any, before: str, wrong: str
) -> None:
    matcher = compiler.compile(GrammarSpec(kind="structural_tag", text=json.dumps(TAG)))
    assert all(matcher.accept(byte) for byte in f"  So\n\n: <a>{before}".encode())
    assert matcher.count_valid(bytes_of(wrong)) < len(wrong)


def test_the_callers_whitespace_is_that_of_structural_tags_too(compiler: Any) -> None:
    for whitespace, blank, count in (("", " ", 0), (r"\s*", "\n\n\t", 3)):
        spec = GrammarSpec(kind="structural_tag", text=json.dumps(TAG), whitespace=whitespace)
        matcher = compiler.compile(spec)
        assert all(matcher.accept(byte) for byte in b'<a>{"a b":1,')
        assert matcher.count_valid(bytes_of(blank)) == count
