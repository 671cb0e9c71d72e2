"""How other machines join an engine, as the plan decides it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from inferno.catalog import Offer, load_catalog
from inferno.cli.render import explained
from inferno.cli.shares import how_to_join
from inferno.contracts import Executor
from inferno.errors import OptionError, UnsupportedError
from inferno.plan import Options, Plan, plan_from_json, plan_to_json, resolve
from inferno.plan.joining import own_address, token_file

pytest.importorskip("inferno_demo")


def planned(**options: Any) -> Plan:
    given = {"rank_host": "10.0.0.1", "device": "cpu", "max_model_len": 256, **options}
    return resolve("demo", Options(**given))


def test_a_plan_says_which_machine_has_which_ranks_and_what_to_run_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = planned(tp=4, nodes=2)
    text = explained(plan)
    machines = "2: this one has ranks 0-1, machine 1 ranks 2-3; joined at 10.0.0.1:29400"
    assert re.search(rf"machines +{re.escape(machines)}", text)
    assert re.search(r"exchange +.* received per token by each, through gloo over TCP", text)
    how_to_join(plan)
    output = capsys.readouterr().err
    assert "inferno rank --join 10.0.0.1:29400" in output and "ranks.token" in output
    assert plan_from_json(plan_to_json(plan)) == plan


def test_a_plan_of_one_machine_says_nothing_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    plan = resolve("demo", Options(device="cpu", tp=2, max_model_len=256))
    assert plan.ranks is not None and plan.ranks.join is None and plan.ranks.here == 2
    how_to_join(plan)
    assert "machines" not in explained(plan) and not capsys.readouterr().err


def test_each_machine_has_the_memory_and_cores_of_its_own_ranks_only() -> None:
    one, two = planned(tp=2, memory="2GiB"), planned(tp=2, nodes=2, memory="2GiB")
    assert two.memory_limit == 2 * one.memory_limit
    bound = planned(tp=2, nodes=2, numa="auto")
    assert bound.ranks is not None and len(bound.ranks.cores) == 2 and bound.ranks.numa == "auto"
    assert bound.ranks.cores[0] == bound.ranks.cores[1], "of two machines"


def test_processes_of_a_launcher_are_started_by_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(tp=3, executor="environment")
    assert plan.ranks is not None and plan.ranks.join is not None
    assert plan.ranks.join.each == plan.ranks.started == 1 and plan.ranks.here == 3
    assert "3, started by environment" in explained(plan)
    how_to_join(plan)
    assert not capsys.readouterr().err
    [offer] = [o for o in load_catalog().of("inferno_executors") if o.item.name == "environment"]
    assert offer.item.machines is not None and [*offer.item.machines(None)] == []


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"tp": 3, "nodes": 2}, "3 ranks cannot be dealt out evenly to 2 machines"),
        ({"nodes": 2}, "1 ranks cannot be dealt out evenly"),
        ({"tp": 2, "nodes": 0}, "nodes is 0"),
        ({"tp": 2, "nodes": 2, "rank_port": 70_000}, "rank_port is 70000"),
        ({"tp": 2, "executor": "nobody"}, "executor 'nobody' starts no other machines"),
        ({"tp": 2, "executor": "processes"}, "starts no other machines"),
        ({"executor": "environment"}, "and there is one"),
        ({"tp": 2, "nodes": 2, "sandbox": True}, "--sandbox"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(options: dict[str, Any], cause: str) -> None:
    with pytest.raises((OptionError, UnsupportedError)) as caught:
        planned(**options)
    assert cause in caught.value.cause and caught.value.remedy


def test_an_executor_that_cannot_start_machines_says_why() -> None:
    catalog = load_catalog()
    reason = "the cluster is closed"
    closed = Executor(name="closed", machines=lambda what: (), refuses=lambda *_: reason)
    known = catalog.of("inferno_executors")
    hooks = {**catalog.offers, "inferno_executors": (*known, Offer(closed, "inferno"))}
    changed = evolve(catalog, offers=hooks)
    options = Options(device="cpu", tp=2, nodes=2, executor="closed", max_model_len=256)
    with pytest.raises(UnsupportedError, match="--executor closed: the cluster is closed"):
        resolve("demo", options, changed)


def test_the_token_is_this_users_unless_a_file_is_named(tmp_path: Path) -> None:
    assert token_file(None, {"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "inferno/ranks.token"
    assert token_file("~/x", {}) == Path("~/x").expanduser()
    assert own_address().count(".") == 3 or ":" in own_address()
