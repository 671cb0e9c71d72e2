"""What a plan needs of each machine, and of each rank there."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from inferno.cli.explain import _as_json
from inferno.cli.render import explained
from inferno.plan import Options, Plan, machines_of, plan_of_stage, resolve
from inferno.plan.pipeline import stage_bytes

pytest.importorskip("inferno_demo")


def plan_of(**options: Any) -> Plan:
    given = {"device": "cpu", "max_model_len": 256, "dtype": "bfloat16", "memory": "8GiB"}
    return resolve("demo", Options(**{**given, **options}))


def planned(plan: Plan, name: str) -> int:
    [nbytes] = [item.nbytes for item in plan.memory if item.name == name]
    return nbytes


KEYS_AND_VALUES = 4 * 2 * 128 * 256 * 2
"""Bytes of their projections, in four layers."""


@pytest.mark.parametrize(("ranks", "twice"), [(2, 0), (3, 0), (4, KEYS_AND_VALUES)])
def test_ranks_have_all_weights_together_and_what_is_whole_each(ranks: int, twice: int) -> None:
    """Also where three have unequal parts, of which the plan's memory has the largest, and where
    two have the same head of keys and values."""
    one, plan = planned(plan_of(), "weights"), plan_of(tp=ranks)
    assert plan.ranks is not None and len(plan.ranks.weights) == ranks
    copied = sum(whole.nbytes for whole in plan.ranks.whole)
    plain = one - plan.ranks.weight_bytes
    together = sum(plan.ranks.weights)
    assert together == pytest.approx(one + (ranks - 1) * (copied + plain) + twice, abs=200)
    assert max(plan.ranks.weights) <= planned(plan, "weights")
    assert len({*plan.ranks.weights}) == (1 if ranks != 3 else 2)


def test_a_stage_has_the_bytes_of_its_layers() -> None:
    sizes = [100, 30, 1, 2, 4, 8, 1000]
    spans = [(0, 1), (1, 3), (3, 4)]
    assert [stage_bytes(sizes, span) for span in spans] == [131, 6, 1008]
    assert [stage_bytes(sizes, span, seeing=2) for span in spans] == [131, 36, 1008]
    assert stage_bytes(sizes, (0, 4)) == sum(sizes)


def test_ranks_of_stages_are_in_the_order_of_their_numbers() -> None:
    """The first ranks have the last stage, whose layers and cache may be others."""
    plan = plan_of(pp=3, tp=2)
    assert plan.ranks is not None
    stages = [plan.ranks.pipeline[plan.ranks.stage_of(rank)] for rank in range(6)]
    assert [*plan.ranks.weights] == [stage.weight_bytes for stage in stages]
    [machine] = machines_of(plan)
    caches = [plan_of_stage(plan, plan.ranks.stage_of(rank)).kv_bytes for rank in range(6)]
    assert [rank.cache for rank in machine.ranks] == caches
    assert len({*caches}) > 1, "four layers cannot be dealt out evenly to three stages"


def test_machines_have_what_their_ranks_have() -> None:
    plan = plan_of(tp=4, nodes=2)
    machines = machines_of(plan)
    assert [[rank.rank for rank in machine.ranks] for machine in machines] == [[0, 1], [2, 3]]
    for machine in machines:
        assert machine.nbytes == sum(rank.nbytes for rank in machine.ranks)
        assert machine.nbytes == plan.nbytes, "all four are equal, and the plan's are of one here"
    text = explained(plan)
    assert re.search(r"machine 1 +\S+ \S+  \S+ \S+ of weights, \S+ \S+ of cache, ", text)
    assert re.search(r"  ranks 2-3 +\S+ \S+  each: ", text)


def test_engines_count_as_often_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferno.host.usable_cores", lambda: 4)
    for options in ({"dp": 2}, {"dp": 2, "tp": 2}):
        plan = plan_of(**options)
        [machine] = machines_of(plan)
        assert machine.nbytes == plan.nbytes
        assert machine.weights == 2 * sum(rank.weights for rank in machine.ranks)
        assert "2 engines: " in explained(plan)


def test_json_says_the_same() -> None:
    plan = plan_of(tp=2)
    [machine] = json.loads(_as_json(plan, None))["machines"]
    [need] = machines_of(plan)
    assert machine["nbytes"] == need.nbytes and machine["engines"] == 1
    parts = ("weight_bytes", "cache_bytes", "other_bytes")
    for entry in (machine, *machine["ranks"]):
        assert entry["nbytes"] == sum(entry[part] for part in parts)
    assert [rank["rank"] for rank in machine["ranks"]] == [0, 1]


def test_one_process_has_no_machines_to_tell_apart() -> None:
    plan = plan_of()
    assert machines_of(plan) == () and "Memory of this machine" not in explained(plan)
    assert "machines" not in json.loads(_as_json(plan, None))
