"""What is kept of a conversation that outgrows the context."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from inferno.llm.overflow import room, windows

ROLES = ["system", *["user", "assistant"] * 6, "user"]


def first_window(roles: Sequence[str], sizes: Sequence[int], limit: int) -> list[int]:
    return next(windows(roles, sizes, limit))


def test_an_answer_has_room() -> None:
    assert room(1000, 100) == 900
    assert room(1000, None) == 750
    assert room(1000, 990) == 500, "a limit is not a wish for so many"


def test_system_messages_and_whole_turns_are_kept() -> None:
    window = first_window(ROLES, [12] * len(ROLES), 140)
    assert window[0] == 0 and ROLES[window[1]] == "user" and window[-1] == len(ROLES) - 1
    assert window[1:] == list(range(window[1], len(ROLES)))
    assert len(window) * 20 <= 140


def test_the_last_turn_stays_however_long() -> None:
    *_, last = windows(ROLES, [1000] * len(ROLES), 100)
    assert last == [0, len(ROLES) - 1]
    calls = ["user", "assistant", "user", "assistant", "tool", "assistant"]
    *_, last = windows(calls, [1000] * 6, 100)
    assert last == [2, 3, 4, 5], "a call and its result are not parted"


def test_most_prompts_begin_like_the_one_before() -> None:
    """So that the prefix cache finds them: only each few turns the beginning moves."""
    starts = []
    for turns in range(1, 60):
        roles = ["system", *["user", "assistant"] * turns, "user"]
        starts.append(first_window(roles, [12] * len(roles), 400)[1])
    assert starts == sorted(starts) and starts[-1] > 60
    assert len(set(starts)) <= 10


@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.integers(0, 90))
    )
)
def test_windows_shrink_to_the_end_of_the_conversation(messages: list[tuple[str, int]]) -> None:
    roles, sizes = [role for role, _ in messages], [size for _, size in messages]
    picks = list(windows(roles, sizes, 100))
    head = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    assert bool(picks) == (head < len(roles))
    for longer, shorter in zip(picks, picks[1:], strict=False):
        assert set(shorter) < set(longer)
    assert all(pick[:head] == list(range(head)) and pick[-1] == len(roles) - 1 for pick in picks)
