"""Sessions over a real model and a store: the same tokens, kept in every tier, dropped in all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from inferno import LLM, SamplingParams
from inferno.errors import OptionError
from inferno.plan import Options, resolve
from inferno.plan.plan import plan_from_json, plan_to_json

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SIZES: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 2,
    "block_size": 16,
    "threads": 1,
}


def prompts(count: int, tokens: int = 150) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(100) for _ in range(tokens)] for _ in range(count)]


def small() -> dict[str, Any]:
    """Options for a cache of some three prompts: bytes that the model takes, and 30 blocks more."""
    plan = resolve("demo", Options(**SIZES))
    fixed, block = plan.fixed_bytes, sum(group.unit_bytes for group in plan.groups)
    return SIZES | {"memory": str(fixed + 34 * block)}


@pytest.mark.slow
def test_a_sessions_blocks_outlive_others_and_change_no_answer() -> None:
    mine, *others = prompts(8)
    with LLM("demo", **small()) as llm:
        right = [each.outputs[0].token_ids for each in llm.generate([mine, *others], GREEDY)]
    for session in (None, "mine"):
        with LLM("demo", **small()) as llm:
            results = [llm.generate(mine, GREEDY, session=session)[0]]
            for other in others:
                results += llm.generate(other, GREEDY)
            assert [each.outputs[0].token_ids for each in results] == right
            again = llm.generate(mine, GREEDY, session=session)[0]
            assert again.outputs[0].token_ids == right[0]
            assert again.num_cached_tokens == (0 if session is None else 144)
            views = llm.sessions()
            assert len(views) == (0 if session is None else 1)
            assert all(view.memory == view.pinned == view.tokens == 144 for view in views)


def test_pins_are_soft_a_session_over_the_whole_cache_blocks_nothing() -> None:
    many = prompts(6)
    with LLM("demo", **small()) as llm:
        right = [each.outputs[0].token_ids for each in llm.generate(many, GREEDY)]
    with LLM("demo", **small(), session_quota=10**6) as llm:
        results = [llm.generate(p, GREEDY, session=f"s{i}")[0] for i, p in enumerate(many)]
        assert [each.outputs[0].token_ids for each in results] == right
        together = llm.generate(many, GREEDY, session="all")
        assert [each.outputs[0].token_ids for each in together] == right
        assert len(llm.sessions()) == 7
        each = llm.generate(many[:2], GREEDY, session=["one's own", None])
        assert [one.outputs[0].token_ids for one in each] == right[:2]
        assert len(llm.sessions()) == 8


def test_tiers_of_a_session_and_what_its_end_leaves(tmp_path: Path) -> None:
    mine, *others = prompts(8)
    stored: dict[str, Any] = {"kv_store": str(tmp_path), "cpu_mem_fold": 10.0}
    with LLM("demo", **small(), **stored) as llm:
        right = llm.generate(mine, GREEDY, session="a" * 1000)[0].outputs[0].token_ids
        [view] = llm.sessions()
        assert len(view.name) == 64 and (view.memory, view.host, view.disk) == (144, 0, 0)
        llm.generate(others, GREEDY)
        llm.generate([*others, *others], GREEDY, session="others")
        [_, view] = llm.sessions()
        assert view.memory + view.host == 144 and view.tokens == 144
        assert llm.end_session("a" * 1000) and not llm.end_session("a" * 1000)
        again = llm.generate(mine, GREEDY)[0]
        assert again.outputs[0].token_ids == right and again.num_cached_tokens == 0


def test_a_session_is_ended_before_its_blocks_were_written(tmp_path: Path) -> None:
    [mine] = prompts(1)
    with LLM("demo", **SIZES, kv_store=str(tmp_path)) as llm:
        llm.generate(mine, GREEDY, session="a")
        assert llm.end_session("a")
        assert llm.generate([1, 2, 3], GREEDY)  # a step, which saves what it was to save
    with LLM("demo", **SIZES, kv_store=str(tmp_path)) as llm:
        again = llm.generate(mine, GREEDY)[0]
        assert (again.num_cached_tokens or 0) == 0


@pytest.mark.parametrize("twice", [False, True])
def test_sessions_are_seen_and_ended_while_the_engine_sleeps(twice: bool, tmp_path: Path) -> None:
    mine, other = prompts(2)
    with LLM("demo", **SIZES, kv_store=str(tmp_path)) as llm:
        llm.generate([mine, other], GREEDY, session=["mine", "other"])
        llm.sleep()
        assert {view.name: (view.tokens, view.memory) for view in llm.sessions()} == {
            "mine": (144, 0),
            "other": (144, 0),
        }
        assert llm.end_session("mine") and not llm.end_session("mine")
        assert [view.name for view in llm.sessions()] == ["other"]
        llm.wake_up()
        if twice:
            llm.sleep()
            llm.wake_up()
        assert [view.name for view in llm.sessions()] == ["other"]
        again = llm.generate([mine, other], GREEDY)
        assert [each.num_cached_tokens or 0 for each in again] == [0, 144], "it was dropped"


def test_a_plan_says_what_keeps_sessions() -> None:
    plan = resolve("demo", Options(session_ttl=60.0, session_quota=100))
    assert plan.sessions is not None
    assert (plan.sessions.name, plan.sessions.ttl, plan.sessions.quota) == ("session", 60.0, 100)
    assert plan_from_json(plan_to_json(plan)) == plan
    plan = resolve("demo", Options())
    assert plan.sessions is not None and plan.sessions.quota == plan.max_model_len
    off: list[dict[str, Any]] = [{"cache_policy": "none"}, {"disable": ("inferno-session",)}]
    for options in off:
        assert resolve("demo", Options(**options)).sessions is None
        with pytest.raises(OptionError, match="--session-ttl"):
            resolve("demo", Options(session_ttl=60.0, **options))


@pytest.mark.parametrize("wrong", [{"session_ttl": 0}, {"session_ttl": 1e9}, {"session_quota": 0}])
def test_a_wrong_option_is_named(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(OptionError, match=name):
        Options(**wrong)
