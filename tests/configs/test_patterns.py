"""Patterns of a checkpoint's config are matched in a bounded number of steps, or refused."""

from __future__ import annotations

import re

import pytest

from inferno.configs import PatternError, begins_with

PATHS = ["model.layers.0.self_attn.q_proj", "model.layers.47.mlp.experts.127.down_proj", "lm_head"]


@pytest.mark.parametrize(
    "pattern",
    [
        "lm_head",
        r".*\.(q|k|v)_proj$",
        r".*\.18\..*gate.*",
        r"^(?!.*lm_head).*$",
        r"model\.layers\.(1[0-9]|2[0-3]|47)\..*",
        r"(?:.*\.)?layers\.[0-9]+\..*",
        r"(?i).*MLP.*",
        r".*mlp\.experts\..*\.(gate|up|down)_proj$",
        r"^model\.layers\.\d+\.self_attn\.(?:q|k|v|o)_proj$",
        r"(model\.)?layers\.\d{1,3}\.[a-z_]+\.[qkv]_proj",
        r".*(?<!q)_proj",
        r"(?P<a>m)?(?(a)odel|lm).*",
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_ordinary_patterns_match_as_by_re(pattern: str, path: str) -> None:
    assert begins_with(path, pattern) == (re.match(pattern, path) is not None)


@pytest.mark.parametrize(
    "pattern",
    [
        "(([a-z0-9._])+)+!",
        "(.*)*!",
        "(a|a|b|.)*(?=!)",
        "(?:.{0,50}){50}!",
        ".*" * 12 + "!",
        ".?" * 40 + "!",
        "(?=.*.*.*!)" * 50,
        "(?:(?!.*.*.*!).)*",
        r"(\w|.)*(\w|.)*\1\2!",
        "(?:(?:)){1000000000}",
        "(?:" * 30 + "a{1,9}" + "){1,9}" * 30,
    ],
)
def test_patterns_that_could_take_for_ever_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match="take for ever"):
        begins_with(PATHS[1], pattern)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "not a pattern"),
        ("(" * 101 + ")" * 101, "100 groups"),
        ("a{99999999999999999999}", "not a pattern"),
        ("a" * 10_001, "10000 characters"),
    ],
)
def test_malformed_patterns_are_refused(pattern: str, said: str) -> None:
    with pytest.raises(PatternError, match=said):
        begins_with(PATHS[0], pattern)


def test_many_counted_repetitions_take_no_memory() -> None:
    assert not begins_with(PATHS[0], "(?:a{1000}){1000}" * 100)
