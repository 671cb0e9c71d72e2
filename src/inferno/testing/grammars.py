"""Tests of every provider of grammars: over a tiny vocabulary, its masks lead to the strings that a
grammar matches, and to no other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
from attrs import frozen

from inferno.catalog import Catalog
from inferno.contracts import (
    GrammarCompiler,
    GrammarKind,
    GrammarProvider,
    GrammarSpec,
    MaskRequest,
    Matcher,
    Vocabulary,
)
from inferno.errors import GrammarError
from inferno.testing.alike import alike
from inferno.testing.installed import Installed
from inferno.testing.tiny import run_python

_TOKENS = [b"a", b"b", b"ab", b"1", b"{", b"}", b"[", b"]", b'"', b":", b",", b"<", b">", b'{"']
_SPECIAL, _END, _NONE = len(_TOKENS), len(_TOKENS) + 1, len(_TOKENS) + 2
VOCABULARY = Vocabulary(
    tokens=[*_TOKENS, b"<|mark|>", b"<|end|>", b""],
    special=frozenset({_SPECIAL, _END}),
    end=(_END,),
    encode=lambda text: [_TOKENS.index(bytes([byte])) for byte in text.encode()],
)
"""Some characters, two tokens of two, a special token, an end token and an id without a token."""


@frozen
class Case:
    """A grammar, and what it matches."""

    kind: GrammarKind
    text: str
    matches: Callable[[str], bool]
    alphabet: str
    length: int = 6
    """Of the longest strings to compare."""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict) and text.count('"a"') <= 1
    except ValueError:
        return False


CASES: Mapping[str, Case] = {
    "regex": Case("regex", "(ab|b)*a?", lambda s: bool(re.fullmatch("(ab|b)*a?", s)), "ab"),
    "class": Case("regex", "[ab1]{2,3}", lambda s: 2 <= len(s) <= 3, "ab1", 4),
    "choice": Case("choice", '["a", "ab", "ba1"]', lambda s: s in ("a", "ab", "ba1"), "ab1", 4),
    "lark": Case("lark", 'start: "a" start? "b"', lambda s: _balanced(s), "ab"),
    "gbnf": Case("gbnf", 'root ::= "a" root "b" | "ab"', lambda s: _balanced(s), "ab"),
    "enum": Case(
        "json_schema", '{"enum": ["a", "b", 1]}', lambda s: s in ('"a"', '"b"', "1"), 'ab1"'
    ),
    "array": Case(
        "json_schema",
        '{"type": "array", "items": {"const": 1}, "maxItems": 2}',
        lambda s: s in ("[]", "[1]", "[1,1]"),
        "[]1,",
    ),
    "object": Case(
        "json_schema",
        '{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],'
        ' "additionalProperties": false}',
        lambda s: s == '{"a":1}',
        '{}"a:1',
        7,
    ),
    "json_object": Case("json_object", "", lambda s: s in ("{}", '{"":1}'), '{}":1', 6),
    "structural_tag": Case(
        "structural_tag",
        '{"structures": [{"begin": "<", "schema": {"const": 1}, "end": ">"}], "triggers": ["<"]}',
        lambda s: bool(re.fullmatch("([^<]|<1>)*", s)),
        "a<1>",
        5,
    ),
}
REFUSED: Mapping[GrammarKind, Sequence[str]] = {
    "regex": ("(", "[z-a]"),
    "choice": ("[]", "[1]", "nothing"),
    "lark": ("", "start: missing", "a a a"),
    "gbnf": ("root ::= missing", "::="),
    "json_schema": ("[1]", "nothing", '{"type": "strng"}', '{"pattern": "(", "type": "string"}'),
    "structural_tag": (
        "{}",
        "[]",
        '{"structures": [{"begin": "x", "end": ""}], "triggers": ["y"]}',
    ),
}


def _balanced(text: str) -> bool:
    half = len(text) // 2
    return bool(text) and text == "a" * half + "b" * half


class GrammarProviderTests(Installed):
    """Set `provider` to its registered name."""

    provider: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> GrammarProvider:
        return catalog.named(GrammarProvider, cls.provider).item

    @pytest.fixture(scope="class")
    @classmethod
    def compiler(cls, item: GrammarProvider) -> GrammarCompiler:
        built: GrammarCompiler = item.build(VOCABULARY)
        return built

    @pytest.mark.parametrize("name", CASES)
    def test_masks_lead_to_exactly_what_the_grammar_matches(
        self, item: GrammarProvider, compiler: GrammarCompiler, name: str
    ) -> None:
        case = CASES[name]
        if case.kind not in item.kinds:
            pytest.skip(f"it does not compile {case.kind}")
        spec = GrammarSpec(kind=case.kind, text=case.text, whitespace="")
        strings = set(_reached(compiler, spec, case.alphabet, case.length))
        wanted = {
            text
            for length in range(case.length + 1)
            for text in map("".join, product(case.alphabet, repeat=length))
            if case.matches(text)
        }
        assert strings == wanted

    def test_bad_grammars_are_refused_with_a_reason(
        self, item: GrammarProvider, compiler: GrammarCompiler
    ) -> None:
        for kind, texts in REFUSED.items():
            for text in texts if kind in item.kinds else ():
                with pytest.raises(GrammarError) as caught:
                    compiler.compile(GrammarSpec(kind=kind, text=text))
                assert caught.value.cause, (kind, text)

    def test_masks_after_drafts_are_those_of_the_next_steps(
        self, compiler: GrammarCompiler
    ) -> None:
        matcher, spec = compiler.compile(_ANY), _ANY
        drafts = VOCABULARY.encode("abba")
        masks_MW = _masks(compiler, matcher, drafts)
        assert (masks_MW == _masks(compiler, matcher, drafts)).all(), "masks change nothing"
        stepwise = compiler.compile(spec)
        for mask_W, token_id in zip(masks_MW, [*drafts, None], strict=True):
            assert (mask_W == _masks(compiler, stepwise)[0]).all()
            assert token_id is None or stepwise.accept(token_id)

    def test_masks_of_many_rows_are_those_of_each(self, compiler: GrammarCompiler) -> None:
        matchers = [compiler.compile(_ANY) for _ in range(5)]
        for count, matcher in enumerate(matchers):
            assert all(matcher.accept(token_id) for token_id in VOCABULARY.encode("ab" * count))
        masks_MW = np.zeros((5, 1), np.int32)
        compiler.fill([MaskRequest(m, (), i) for i, m in enumerate(matchers)], masks_MW)
        for matcher, mask_W in zip(matchers, masks_MW, strict=True):
            assert (mask_W == _masks(compiler, matcher)[0]).all()

    def test_drafts_are_valid_up_to_the_first_that_is_not(self, compiler: GrammarCompiler) -> None:
        matcher = compiler.compile(_ANY)
        a, b, one = VOCABULARY.encode("ab1")
        assert matcher.count_valid([a, b, one, a]) == 2
        assert matcher.count_valid([a, b, one, a]) == 2, "the count changes nothing"
        assert not matcher.accept(one) or matcher.error

    @pytest.mark.parametrize("name", CASES)
    def test_a_mask_allows_just_the_single_tokens_that_may_follow(
        self, item: GrammarProvider, compiler: GrammarCompiler, name: str
    ) -> None:
        """Greedy draws ask for those instead. End tokens, special ones and ids without a token are
        asked for too."""
        case = CASES[name]
        if case.kind not in item.kinds:
            pytest.skip(f"it does not compile {case.kind}")
        matcher = compiler.compile(GrammarSpec(kind=case.kind, text=case.text))
        for turn in range(6):
            allowed, forced = _allowed(_masks(compiler, matcher)[0]), list(matcher.forced())
            single = {i for i in range(len(VOCABULARY.tokens)) if matcher.count_valid([i])}
            if forced:
                assert forced[0] in single & allowed, f"after {turn} tokens"
            else:
                assert not single or single == allowed, f"after {turn} tokens"
            follows = sorted(allowed - {_END})
            if matcher.is_done or not follows:
                break
            assert matcher.accept(follows[turn % len(follows)])

    def test_forced_tokens_are_the_only_text(self, compiler: GrammarCompiler) -> None:
        matcher = compiler.compile(GrammarSpec(kind="regex", text="1ab1[ab]"))
        forced = list(matcher.forced())
        assert list(matcher.forced()) == forced, "the question changes nothing"
        text = b"".join(VOCABULARY.tokens[i] for i in forced)
        assert b"1ab1".startswith(text)
        assert matcher.count_valid(forced) == len(forced)

    def test_it_is_done_when_nothing_can_follow(self, compiler: GrammarCompiler) -> None:
        matcher = compiler.compile(GrammarSpec(kind="regex", text="ab?"))
        a, b = VOCABULARY.encode("ab")
        steps = [(matcher.accept(each), matcher.is_done) for each in (a, b)]
        assert steps == [(True, False), (True, True)] and not matcher.error
        assert _allowed(_masks(compiler, matcher)[0]) <= {_END}

    def test_special_tokens_and_unknown_ids_are_no_text(self, compiler: GrammarCompiler) -> None:
        matcher = compiler.compile(GrammarSpec(kind="regex", text="(?s:.)*"))
        allowed = _allowed(_masks(compiler, matcher)[0])
        assert allowed >= set(range(len(_TOKENS))) and not allowed & {_SPECIAL, _NONE}

    def test_what_a_grammar_does_not_end_has_no_end_token(self, compiler: GrammarCompiler) -> None:
        matcher = compiler.compile(GrammarSpec(kind="regex", text="ab"))
        assert _END not in _allowed(_masks(compiler, matcher)[0])

    @alike
    def test_declaring_it_imports_no_torch(self) -> None:
        code = (
            "import sys; from inferno.catalog import load_catalog; from inferno.contracts "
            "import GrammarProvider\n"
            "item = load_catalog().named(GrammarProvider, sys.argv[1]).item\n"
            "[item.refuses(kind) for kind in item.kinds]\n"
            "sys.exit('torch is imported' if 'torch' in sys.modules else 0)"
        )
        done = run_python(code, self.provider)
        assert done.returncode == 0, done.stderr


_ANY = GrammarSpec(kind="regex", text="[ab]*")


def _masks(compiler: GrammarCompiler, matcher: Matcher, drafts: Sequence[int] = ()) -> Any:
    masks_MW = np.zeros((1 + len(drafts), -(-len(VOCABULARY.tokens) // 32)), np.int32)
    compiler.fill([MaskRequest(matcher, drafts, 0)], masks_MW)
    return masks_MW


def _allowed(mask_W: Any) -> set[int]:
    bits = np.unpackbits(mask_W.view(np.uint8), bitorder="little")
    return {i for i in range(len(VOCABULARY.tokens)) if bits[i]}


def _reached(
    compiler: GrammarCompiler, spec: GrammarSpec, alphabet: str, length: int
) -> Iterator[str]:
    """Yield the complete strings up to a length that masks lead to, over an alphabet."""
    prefixes: list[tuple[int, ...]] = [()]
    while prefixes:
        longer: list[tuple[int, ...]] = []
        for ids in prefixes:
            text = b"".join(VOCABULARY.tokens[i] for i in ids).decode()
            matcher = compiler.compile(spec)
            assert all(matcher.accept(i) for i in ids), f"{text!r} was allowed by masks"
            assert not matcher.error
            allowed = _allowed(_masks(compiler, matcher)[0])
            if _END in allowed:
                yield text
            if matcher.is_done:
                continue
            for token_id in sorted(allowed - {_END}):
                token = VOCABULARY.tokens[token_id].decode()
                if len(text) + len(token) <= length and set(token) <= set(alphabet):
                    longer.append((*ids, token_id))
        prefixes = longer
