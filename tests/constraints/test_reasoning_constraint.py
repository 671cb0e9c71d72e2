"""Where reasoning under a grammar ends, and what it must not contain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import evolve

from inferno.constraints.budget import BudgetConstraint
from inferno.constraints.constraint import ReasoningConstraint, ReasoningTokens
from inferno.contracts import ReasoningMarkers, Vocabulary

OPEN, CLOSE, CALL, DOUBLE, LINE_OPEN, END = range(256, 262)
SPECIAL = [b"<think>", b"</think>", b"<call>", b">>", b"\n<think>\n", b"<end>"]
TOKENS = [*(bytes([i]) for i in range(256)), *SPECIAL]
MARKERS = ReasoningMarkers(open="<think>", close="</think>", is_open=True)


def encode(text: str) -> Sequence[int]:
    data = text.encode()
    return [TOKENS.index(data)] if data in SPECIAL else list(data)


VOCABULARY = Vocabulary(tokens=TOKENS, special=frozenset({END}), end=(END,), encode=encode)


def reasoning(markers: ReasoningMarkers = MARKERS) -> ReasoningConstraint:
    marks = ReasoningTokens.of(VOCABULARY, markers)
    unused: Any = None
    return ReasoningConstraint(unused, unused, markers, marks)


def allowed(constraint: ReasoningConstraint, drafts: Sequence[int] = ()) -> set[int]:
    """The tokens that may follow the drafts."""
    mask_NW = np.zeros((1 + len(drafts), -(-len(TOKENS) // 32)), np.int32)
    assert constraint.fill(drafts, mask_NW) is None
    bits = np.unpackbits(mask_NW[-1].view(np.uint8), bitorder="little")
    return {int(i) for i in np.flatnonzero(bits)}


def test_the_token_after_the_closing_marker_is_the_grammars() -> None:
    """So the marker is drawn, as the last draft that is verified leaves a free token after it."""
    a, x = b"ax"
    for drafts, count in [
        ([a, CLOSE, x], 1),
        ([a, CLOSE, x, x], 1),
        ([a, CLOSE], 1),
        ([CLOSE, x], 0),
        ([a, *b"</think>", x], 8),
        ([a, x, a], 3),
        ([a, END, x], 1),
    ]:
        assert reasoning().count_valid(drafts) == count, drafts


def test_no_token_closes_the_marker_and_goes_on_with_its_last_character() -> None:
    constraint = reasoning()
    for token_id in b"</think":
        assert constraint.accept(token_id)
    tokens = allowed(constraint)
    assert ord(">") in tokens and DOUBLE not in tokens
    assert constraint.count_valid([DOUBLE]) == 0


def test_reasoning_contains_no_marker_of_calls() -> None:
    """A parser may take a call in reasoning that was not closed as a real one."""
    constraint = reasoning(evolve(MARKERS, calls=("<call>", "[calls]")))
    assert CALL in allowed(reasoning())
    assert CALL not in allowed(constraint) and CALL not in allowed(constraint, b"a")
    assert ord("[") in allowed(constraint), "a marker of several tokens"
    assert constraint.count_valid([ord("a"), CALL]) == 1


def test_a_budget_holds_however_the_opening_marker_is_written() -> None:
    marks = ReasoningTokens.of(VOCABULARY, MARKERS)

    def begun(*token_ids: int) -> bool:
        constraint = BudgetConstraint(None, marks, (CLOSE,), 2, is_open=False)
        for token_id in (*token_ids, ord("a"), ord("b")):
            assert constraint.accept(token_id)
        return list(constraint.forced()) == [CLOSE]

    assert begun(OPEN) and begun(*b"<think>") and begun(*b"\n <think>")
    assert begun(ord("\n"), OPEN) and begun(LINE_OPEN)
    assert not begun(*b"<thin") and not begun(*b"a<think>") and not begun(*b"\n")
