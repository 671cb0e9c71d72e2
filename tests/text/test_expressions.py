"""Expressions that count as proportionate take no more than in proportion."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import pytest
import tokenizers
from hypothesis import assume, given, settings
from tokenizers.pre_tokenizers import Split

from inferno.text.expressions import is_proportionate

_WORD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lo}&&[^\p{Han}]]", r"[\p{Ll}\p{Lo}&&[^\p{Han}]]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
USUAL = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|{_SPACES}",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[\p{P}\p{S}]+[\r\n]*",
    " ?[^(\\s|.,!?…。，、।۔،)]+",
    "[一-龥぀-ゟ゠-ヿ]+",
    " {2,}",
    "[[:alpha:]]+",
    r"(?<!\n)\n(?!\n)",
]
NOT = [
    *(r"\s+$", ".*a", "a*a*b", "a+b|a", "a++b"),
    *(r"\s*[\r\n]+", r"\s*[\r\n]+|\s|\s+", r"\s+(?!x)", r"\s++(?!\S)", "[ab]*b+c"),
    *(
        "(a|a)*$",
        "(a+)+$",
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"(?=(\d{3})+(?!\d))",
        r"(a)\1",
        r"(?<n>a)\k<n>",
    ),
    *("a{1,100}a{1,100}b", "(?:a|a){20}b", "a{9000}b", "a{1,3}+b", "a+?b"),
    *("[]a]*b", "[^]a]*b", r"\c(a)*b", "a(?i)b|c", "(?x)a +", "(", ")", "[a", "*"),
]
N = 40_000
TEXTS = [
    *("a" * N + "b", " " * N + "a", ("a" * 20 + " ") * (N // 20), "ab" * (N // 2), "b" * N + "a"),
    *("a " * (N // 2) + "b", " a" * (N // 2) + "\nb", "\n " * (N // 2) + "x", "A" * N + "x"),
]


@pytest.mark.parametrize("expression", USUAL)
def test_what_usual_tokenizers_have_is_proportionate(expression: str) -> None:
    assert is_proportionate(expression)
    assert _seconds(expression) < 1


@pytest.mark.parametrize("expression", NOT)
def test_what_may_read_a_run_many_times_is_not(expression: str) -> None:
    assert not is_proportionate(expression)


_CHARACTERS = st.sampled_from(["a", "b", "[ab]", "[^b]", r"\s", r"[a\s]", r"\S", "."])
_SIGNS = st.sampled_from(["", "", "+", "*", "?", "++", "*+", "{2}", "{1,3}", "{2,}"])
_ENDS = st.sampled_from([r"(?!\S)", "(?=a)", "(?!a)", "$", "^", r"\b", "(?:ab|a)?", "(?:a|b){2}"])
_ALTERNATIVES = st.lists(
    st.one_of(st.tuples(_CHARACTERS, _SIGNS).map("".join), _ENDS), min_size=1, max_size=4
).map("".join)


@st.composite
def _runs(draw: st.DrawFn) -> str:
    """A run that may be read in vain, and an alternative that may match it."""
    before, run = draw(st.sampled_from(["", "a?", " ?", "[^b]?"])), draw(_CHARACTERS)
    failing = before + run + draw(st.sampled_from("*+")) + draw(_CHARACTERS)
    return f"{failing}|{before}{run}+{draw(st.sampled_from(['', 'b*', '(?:ab)?', 'b']))}"


_EXPRESSIONS = st.lists(st.one_of(_ALTERNATIVES, _runs()), min_size=1, max_size=4).map("|".join)


@pytest.mark.slow
@settings(max_examples=40)
@given(_EXPRESSIONS)
def test_nothing_that_counts_as_proportionate_takes_long(expression: str) -> None:
    assume(is_proportionate(expression))
    assert _seconds(expression) < 1, "0.1 s if it is right, many seconds if not"


def _seconds(expression: str) -> float:
    """Processor time for all texts."""
    split = Split(tokenizers.Regex(expression), "isolated")
    began = time.process_time()
    for text in TEXTS:
        split.pre_tokenize_str(text)
    return time.process_time() - began
