"""What `inferno explain` says of ranks."""

from __future__ import annotations

import re
from typing import Any

import pytest
from attrs import evolve

from inferno.cli.render import explained
from inferno.cli.shares import rank_rows
from inferno.plan import Options, Plan, resolve
from inferno.plan.rank_use import ExpertUse, WholeUse

pytest.importorskip("inferno_demo")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve("demo", Options(device="cpu", tp=2, max_model_len=256))


def test_a_plan_says_what_each_rank_has_and_what_they_exchange(plan: Plan) -> None:
    text = explained(plan)
    assert re.search(r"ranks +2, started by processes; sizes below are of one", text)
    assert re.search(r"each has +50% of the weights, \d+ query heads over \d+", text)
    assert re.search(r"exchange +9 sums in a step, .* received per token", text)
    assert "Memory of a rank, of " in text


def test_a_plan_says_which_stage_has_which_layers_and_what_is_passed_on() -> None:
    options: dict[str, Any] = {"device": "cpu", "max_model_len": 256, "dtype": "bfloat16"}
    text = explained(resolve("demo", Options(pp=2, **options)))
    assert re.search(r"stage 1 +embedding, layers 0-1 on rank 1: .* of weights, .* of cache", text)
    assert re.search(r"stage 2 +layers 2-3, output head on rank 0: ", text)
    assert re.search(r"pipeline +2 steps in flight, .*; 512 B per token from stage to stage", text)
    assert "exchange" not in text, "no rank sums"
    both = explained(resolve("demo", Options(pp=2, tp=2, **options)))
    assert re.search(r"stage 1 +embedding, layers 0-1 on ranks 2-3: ", both)
    assert re.search(r"exchange +9 sums in a step, .* by each, in all stages", both)


def test_a_plan_of_one_process_says_nothing_of_ranks() -> None:
    plan = resolve("demo", Options(device="cpu", max_model_len=256))
    assert not [*rank_rows(plan, "")] and "Memory of a rank" not in explained(plan)


def test_what_is_whole_is_named_with_the_reason_and_cores_as_ranges(plan: Plan) -> None:
    assert plan.ranks is not None
    shard = evolve(plan.ranks.shard, attention=False, unit=32)
    whole = WholeUse("model.layers.*.self_attn.q_proj", "9 heads", 1024)
    cores = (0, 1, 2, 8), (4,)
    ranks = evolve(plan.ranks, shard=shard, whole=(whole,), cores=cores)
    rows = [(label, text) for label, text, _ in rank_rows(evolve(plan, ranks=ranks), "inferno")]
    assert ("whole", "model.layers.*.self_attn.q_proj, 1.0 KiB on every rank: 9 heads") in rows
    assert ("cores", "rank 0: 0-2 8; rank 1: 4") in rows
    assert any("all heads; inner widths in multiples of 32" in text for _, text in rows)


def test_experts_that_are_dealt_out_are_counted(plan: Plan) -> None:
    assert plan.ranks is not None
    even = ExpertUse("model.layers.*.mlp.experts", (64, 64), 3 << 20)
    uneven = ExpertUse("model.mtp.*.experts", (2, 3), 1 << 20)
    ranks = evolve(plan.ranks, experts=(even, uneven))
    rows = [
        text for label, text, _ in rank_rows(evolve(plan, ranks=ranks), "") if label == "experts"
    ]
    assert rows == [
        "model.layers.*.mlp.experts: each rank has 64 of 128, 3.0 MiB, whole",
        "model.mtp.*.experts: each rank has 2 or 3 of 5, 1.0 MiB, whole",
    ]
