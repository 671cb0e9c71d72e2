"""What a plan says of engines that share a mixture's experts (`--dp N --ep`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from tests.process.toy_mixture import CONFIG

from inferno import host
from inferno.catalog import load_catalog
from inferno.cli.render import explained
from inferno.contracts import Architecture, Device
from inferno.errors import OptionError, UnsupportedError
from inferno.plan import Options, Plan, plan_from_json, plan_of_engine, plan_to_json, resolve
from inferno.plan.dealing import check_dealing
from inferno.testing import random_tensors
from inferno.testing.tiny import without_kernels

CPU = Device("cpu")


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: 16)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six experts, three of each token, in two layers."""
    pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("toy")
    random_tensors(CONFIG, path)
    (path / "config.json").write_text(json.dumps({**CONFIG, "dtype": "float32"}))
    return path


def plan_of(toy: Path, **options: Any) -> Plan:
    given: dict[str, Any] = {"device": "cpu", "memory": "16GiB", **options}
    return resolve(str(toy), Options(**given), without_kernels(load_catalog()))


def test_each_engine_has_all_but_the_experts_of_others(toy: Path) -> None:
    whole, plan = plan_of(toy, dp=4), plan_of(toy, dp=4, ep=True)
    use = plan.dealt
    assert use is not None and plan.ranks is None and whole.dealt is None
    [experts] = use.experts
    assert (experts.counts, use.mixtures) == ((1, 2, 1, 2), 2)
    saved = [whole.memory[0].nbytes - each for each in use.weights]
    assert saved == [each * experts.nbytes // 2 for each in (5, 4, 5, 4)], "of 6 experts"
    assert plan.memory[0].nbytes == max(use.weights)
    assert plan.groups == whole.groups and plan.attention == whole.attention
    assert plan_from_json(plan_to_json(plan)) == plan
    each = [plan_of_engine(plan, i, "/somewhere").dealt for i in range(4)]
    assert [own.shard.rank for own in each if own is not None] == [0, 1, 2, 3]
    assert {own.folder for own in each if own is not None} == {"/somewhere"}


def test_what_an_engine_receives_is_counted(toy: Path) -> None:
    """Hidden states and picks of each other engine's token, and sums for the tokens of all."""
    use = plan_of(toy, dp=3, ep=True).dealt
    hidden, picked = CONFIG["hidden_size"] * 4, CONFIG["num_experts_per_tok"]
    assert use is not None and use.wire_bytes == 2 * 2 * (hidden + 12 * picked + 3 * hidden)


def test_a_plan_says_what_each_engine_has_and_what_they_exchange(toy: Path) -> None:
    text = explained(plan_of(toy, dp=4, ep=True))
    assert "all but the experts of others" in text
    assert "model.layers.*.mlp.experts: each engine has 1 or 2 of 6, " in text
    assert "tokens in 2 mixtures of a step, " in text and "through gloo" in text
    assert "tokens of other engines" in text


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"pp": 2}, "--pp"),
        ({"max_loras": 1}, "--max-loras"),
        ({"sandbox": True}, "--sandbox"),
        ({"prefill_for": "tcp://127.0.0.1:1"}, "--prefill-for"),
        ({"experts_on_host": 2}, "--experts-on-host"),
    ],
)
def test_what_they_cannot_be_combined_with_is_refused_by_name(
    options: dict[str, Any], name: str
) -> None:
    architecture = Architecture(
        name="Toy",
        config=lambda config: None,
        build=lambda config: None,
        divides={"q_proj": "heads"},
    )
    with pytest.raises(UnsupportedError, match=f"--dp 2 --ep cannot be combined with {name} yet"):
        check_dealing(Options(dp=2, ep=True, **options), CPU, "Toy", architecture)
    check_dealing(Options(dp=2, **options), CPU, "Toy", architecture)
    with pytest.raises(UnsupportedError, match="Toy does not say how it is divided"):
        check_dealing(Options(dp=2, ep=True), CPU, "Toy", evolve(architecture, divides={}))
    with pytest.raises(UnsupportedError, match="share experts compute on CPUs only, not on cuda:0"):
        check_dealing(Options(dp=2, ep=True), Device("cuda"), "Toy", architecture)


def test_what_has_too_few_experts_or_none_is_refused_with_a_remedy(toy: Path) -> None:
    with pytest.raises(UnsupportedError, match="6 experts cannot be .* 7 engines") as refused:
        plan_of(toy, dp=7, ep=True)
    assert "--dp 6" in refused.value.remedy
    pytest.importorskip("inferno_demo")
    with pytest.raises(UnsupportedError, match="no routed experts\nLeave --ep out: each engine"):
        resolve("demo", Options(device="cpu", dp=2, ep=True))
    with pytest.raises(OptionError, match="ep is set without tp or dp"):
        Options(ep=True)


def test_engines_of_ranks_deal_experts_out_to_their_ranks(toy: Path) -> None:
    plan = plan_of(toy, dp=2, tp=2, ep=True)
    assert plan.dealt is None and plan.ranks is not None
    assert plan.ranks.experts[0].counts == (3, 3)
