"""What a plan gives each of several engines, and what they cannot be combined with."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from inferno import host
from inferno.errors import OptionError, OutOfMemoryError, UnsupportedError
from inferno.plan import (
    Machine,
    Options,
    Plan,
    plan_from_json,
    plan_of_engine,
    plan_to_json,
    resolve,
    stages,
)

pytest.importorskip("inferno_demo")

NODES = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: 8)
    monkeypatch.setattr(host, "numa_nodes", lambda: NODES)
    monkeypatch.setattr(stages, "SHARED_FROM", 0)


def plan_of(**options: Any) -> Plan:
    given: dict[str, Any] = {"device": "cpu", "max_model_len": 256, "memory": "4GiB", **options}
    return resolve("demo", Options(**given))


def test_engines_share_cores_and_memory() -> None:
    one, four = plan_of(), plan_of(dp=4)
    assert one.engines is None and four.engines is not None and four.engines.count == 4
    assert (one.threads, four.threads) == (8, 2)
    assert four.memory_limit == one.memory_limit // 4
    assert four.nbytes == 4 * sum(item.nbytes for item in four.memory)
    assert plan_of(dp=2, tp=2).threads == 2
    assert plan_of(dp=2, threads=3).threads == 3
    assert plan_from_json(plan_to_json(four)) == four


def test_an_engine_s_own_plan_knows_of_no_others() -> None:
    plan = plan_of(dp=2, numa="auto")
    assert plan.threads == 4
    each = [plan_of_engine(plan, i) for i in range(2)]
    assert [part.cores for part in each] == [NODES[0], NODES[1]]
    assert all(part.engines is None and part.memory == plan.memory for part in each)
    assert plan_of_engine(each[0], 0) == each[0]


def test_each_engine_has_a_draft_model_of_its_own() -> None:
    draft = plan_of(dp=2, speculative="demo").speculation
    assert draft is not None and draft.draft is not None and draft.draft.engines is not None
    for i in range(2):
        own = plan_of_engine(plan_of(dp=2, speculative="demo"), i).speculation
        assert own is not None and own.draft is not None and own.draft.engines is None


def test_the_ranks_of_each_engine_are_bound_to_its_own_cores() -> None:
    plan = plan_of(dp=2, tp=2, numa="0,1")
    assert plan.engines is not None and plan.ranks is not None
    assert plan.engines.cores == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    assert plan.ranks.cores == plan.engines.cores[0] and plan.threads == 2
    second = plan_of_engine(plan, 1).ranks
    assert second is not None and second.cores == plan.engines.cores[1]


def test_a_core_is_needed_for_each_engine() -> None:
    with pytest.raises(OptionError, match=r"--dp 9 .* each engine, .* has 8\nUse --dp 8"):
        plan_of(dp=9)
    elsewhere = resolve("demo", Options(device="cpu", dp=9), machine=Machine(elsewhere=True))
    assert any("another machine" in note for note in elsewhere.notes)


def test_more_ranks_than_cores_are_slow_and_not_refused() -> None:
    """As those of one engine are: a deployment can be tried on a small machine."""
    plan = plan_of(dp=5, tp=2, memory="8GiB")
    assert "10 processes take turns on 8 cores: fewer would be faster" in plan.notes
    assert plan.threads == 1 and not plan_of(dp=4, tp=2).notes


def test_too_little_memory_for_so_many_is_refused_with_a_remedy() -> None:
    assert plan_of(memory="1GiB")
    with pytest.raises(OutOfMemoryError, match="or use fewer than 4 engines: --dp"):
        plan_of(memory="1GiB", dp=4)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"nodes": 2, "tp": 2}, "--nodes"),
        ({"executor": "processes", "tp": 2}, "--executor"),
    ],
)
def test_what_engines_cannot_share_is_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"--dp 2 cannot be combined with {name}"):
        plan_of(dp=2, **options)


EVENTS = {"kv_events": "tcp://*:5557", "kv_events_replay": "tcp://*:5567/"}


def test_each_engine_publishes_with_its_number_at_the_next_port() -> None:
    """As vLLM does for each data-parallel rank, and its subscribers expect."""
    pytest.importorskip("inferno_kv_events")
    plan = plan_of(dp=3, **EVENTS)
    each = [plan_of_engine(plan, i).events for i in range(3)]
    needs = [use.need("demo", 16) for use in each if use is not None]
    assert [need.engine for need in needs] == [0, 1, 2]
    assert [need.url for need in needs] == ["tcp://*:5557", "tcp://*:5558", "tcp://*:5559"]
    replays = ["tcp://*:5567/", "tcp://*:5568", "tcp://*:5569"]
    assert [need.replay for need in needs] == replays
    named = plan_of_engine(plan_of(dp=2, kv_events="file:///tmp/a:1"), 1).events
    assert named is not None and named.need("demo", 16).url == "file:///tmp/a:1-1"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kv_events_replay": "tcp://*:5558"}, r"share ports.*\nUse another port: .*tcp://\*:5559"),
        ({"kv_events_replay": "tcp://127.0.0.1:5556"}, "share ports"),
        ({"kv_events": "tcp://*:65535"}, r"need 2 ports, .*\nUse a port up to 65534"),
        ({"prefill_for": "tcp://0.0.0.0:5558"}, "--kv-events and --prefill-for share ports"),
    ],
)
def test_addresses_that_engines_would_share_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        plan_of(dp=2, **(EVENTS | options))


def test_a_port_beyond_the_last_one_is_refused() -> None:
    with pytest.raises(OptionError, match=r"99999: the last port is 65535\nUse a port up to 65535"):
        plan_of(kv_events="tcp://*:99999")


def test_ports_of_other_hosts_are_not_shared() -> None:
    pytest.importorskip("inferno_kv_events")
    plan_of(kv_events="tcp://*:5557", kv_events_replay="tcp://*:5558")
    plan_of(dp=2, kv_events="tcp://router:5557", kv_events_replay="tcp://*:5558")


def test_engines_are_linked_one_to_one() -> None:
    pytest.importorskip("inferno_disaggregated")

    def urls(**options: Any) -> list[str]:
        plan, found = plan_of(dp=3, **options), list[str]()
        for i in range(3):
            store = plan_of_engine(plan, i).store
            assert store is not None
            link = store.need_to_link(plan.groups).link
            assert link is not None and store.need(plan.groups).link is None
            assert link.buffer == (1 << 30) // 3
            found.append(link.url)
        return found

    assert urls(prefill_for="shm://a") == ["shm://a", "shm://a-1", "shm://a-2"]
    assert urls(decode_with="shm://a") == ["shm://a"] * 3
    assert urls(decode_with="shm://a", cpu_mem_fold=2.0) == ["shm://a"] * 3
    assert urls(decode_with="shm://a, shm://a-1") == ["shm://a", "shm://a-1", "shm://a"]
    with pytest.raises(OptionError, match="names shm://b twice"):
        plan_of(dp=2, decode_with="shm://a,shm://b,shm://b")
    with pytest.raises(OptionError, match="names 2 instances: --prefill-for takes one"):
        plan_of(dp=2, prefill_for="shm://a,shm://b")
    with pytest.raises(UnsupportedError, match=r"--decode-with nowhere: .*no address"):
        plan_of(dp=2, decode_with="shm://a,nowhere")


def test_engines_share_out_more_instances_than_there_are_engines() -> None:
    pytest.importorskip("inferno_disaggregated")
    plan = plan_of(dp=2, decode_with="shm://a,shm://b,shm://c")
    assert plan.store is not None
    links = [evolve(plan.store, engine=engine).link_of(None) for engine in range(2)]
    assert [(link.url, link.others) for link in links if link is not None] == [
        ("shm://a", ("shm://c",)),
        ("shm://b", ()),
    ]
    assert plan.store.addresses() == ["shm://a", "shm://c", "shm://b"]


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(OptionError, match="dp is 0"):
        Options(dp=0)
    with pytest.raises(OptionError, match="without tp, pp or dp"):
        Options(numa="auto")
