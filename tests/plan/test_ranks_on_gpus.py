"""Which device each of several processes has, from a fake driver: ranks that share a model, and
engines beside each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.plan.test_devices import GIB, A, B

from inferno import host
from inferno.catalog import load_catalog
from inferno.cli.render import explained
from inferno.contracts import Device
from inferno.errors import DeviceError, OptionError, UnsupportedError
from inferno.plan import (
    Gpu,
    Machine,
    Options,
    Plan,
    open_model,
    plan_from_json,
    plan_of_engine,
    plan_of_rank,
    plan_to_json,
)
from inferno.plan.devices import find_devices
from inferno.plan.numa import rank_cores
from inferno.plan.rank_choice import NCCL_BYTES, exchange_of

pytest.importorskip("inferno_demo")

H200 = attrs.evolve(B, free=139 * GIB)
FOUR = tuple(
    attrs.evolve(H200, uuid=f"GPU-{i}", bus=f"0000:1{i}:00.0", free=(139 - i) * GIB)
    for i in range(4)
)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    def build(*gpus: Gpu, elsewhere: bool = False) -> Machine:
        return Machine(gpus=lambda: gpus, environ={}, root=tmp_path, elsewhere=elsewhere)

    return build


def plan_on(machine: Machine, **options: Any) -> Plan:
    given = {"max_model_len": 256, "max_num_seqs": 8, **options}
    with open_model("demo", Options(**given), load_catalog(), machine=machine) as opened:
        return opened.plan


def numbers(devices: tuple[Device, ...]) -> list[str]:
    return [device.torch_name for device in devices]


def test_processes_take_the_devices_after_the_first_or_those_of_a_list(
    machine: Callable[..., Machine],
) -> None:
    four = machine(*FOUR)
    assert numbers(find_devices("cuda", 2, four)) == ["cuda:0", "cuda:1"]
    assert numbers(find_devices("cuda:2", 2, four)) == ["cuda:2", "cuda:3"]
    assert numbers(find_devices("cuda:3, cuda:1", 2, four)) == ["cuda:3", "cuda:1"]
    assert numbers(find_devices("cpu", 3, four)) == ["cpu"] * 3
    assert numbers(find_devices("cuda:1", 4, machine(*FOUR, elsewhere=True)))[-1] == "cuda:4"


def test_too_few_devices_and_different_ones_are_refused(machine: Callable[..., Machine]) -> None:
    too_few = "5 processes need a device each, and from cuda:0 .NVIDIA H200. on there are 4"
    with pytest.raises(DeviceError, match=too_few):
        find_devices("auto", 5, machine(*FOUR))
    with pytest.raises(OptionError, match="names 3 devices for 2 processes"):
        find_devices("cuda:0,cuda:1,cuda:2", 2, machine(*FOUR))
    with pytest.raises(OptionError, match=r"names 2 devices for 1 process\n"):
        find_devices("cuda:0,cuda:1", 1, machine(*FOUR))
    with pytest.raises(DeviceError, match=r"cuda:0 \(NVIDIA H200\) and cuda:1 \(Tesla V100\)"):
        find_devices("cuda", 2, machine(H200, A))
    with pytest.raises(DeviceError, match="differ"):
        find_devices("cuda,cpu", 2, machine(*FOUR))
    with pytest.raises(UnsupportedError, match="CPUs and CUDA devices only, not on xpu:0"):
        plan_on(machine(), device="xpu", tp=2)
    with pytest.raises(UnsupportedError, match="CPUs and CUDA devices only, not on xpu:0"):
        plan_on(machine(), device="xpu", dp=2)


def test_each_rank_has_a_device_of_its_own(machine: Callable[..., Machine]) -> None:
    plan = plan_on(machine(*FOUR), device="cuda:1", tp=2)
    assert plan.ranks is not None and plan.ranks.devices == (1, 2)
    assert plan.ranks.exchange == "nccl"
    assert plan.device.index == 1 and plan.device.free == 137 * GIB, "the least of both"
    assert plan.memory_limit == 137 * GIB * 90 // 100, "each has a device's memory"
    [item] = [item for item in plan.memory if item.name == "exchange"]
    assert item.nbytes > NCCL_BYTES
    assert plan_from_json(plan_to_json(plan)) == plan
    shown = explained(plan)
    assert "devices       rank 0: cuda:1; rank 1: cuda:2" in shown
    assert re.search(r"received per token by each, through nccl\n", shown)


def test_a_ranks_own_plan_names_its_device_everywhere(machine: Callable[..., Machine]) -> None:
    plan = plan_on(machine(*FOUR), device="cuda:1", tp=2)
    first, second = (plan_of_rank(plan, rank) for rank in (0, 1))
    assert first == plan
    assert second.device.torch_name == "cuda:2"
    assert {use.need.device.index for use in second.attention} == {2}
    written = plan_to_json(second)
    assert '"index": 2' in written and '"index": 1' not in written
    assert plan_to_json(plan) == written.replace('"index": 2', '"index": 1')


def test_stages_and_other_machines_take_the_same_devices(machine: Callable[..., Machine]) -> None:
    plan = plan_on(machine(*FOUR), tp=2, pp=2)
    assert plan.ranks is not None and plan.ranks.devices == (0, 1, 2, 3)
    assert plan_of_rank(plan, 3).device.index == 3
    assert "from stage to stage, through gloo" in explained(plan)
    stages = plan_on(machine(*FOUR), pp=2)
    assert not [item for item in stages.memory if item.name == "exchange"], "they use gloo"
    far = plan_on(machine(*FOUR), tp=4, nodes=2)
    assert far.ranks is not None and far.ranks.devices == (0, 1)
    assert [plan_of_rank(far, rank).device.index for rank in range(4)] == [0, 1, 0, 1]
    assert "through nccl over TCP" in explained(far)


def test_ranks_may_share_a_device_without_nccl(machine: Callable[..., Machine]) -> None:
    plan = plan_on(machine(*FOUR), device="cuda:0,cuda:0", tp=2)
    assert plan.ranks is not None and plan.ranks.exchange == "gloo"
    assert plan.capture is None
    assert any("gloo exchanges in the host's memory in between" in note for note in plan.notes)
    assert plan.memory_limit == 139 * GIB * 90 // 100 // 2, "both take of one memory"
    assert not [item for item in plan.memory if item.name == "exchange"]


def test_nccl_is_for_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [Device("cuda", 0), Device("cuda", 1)]
    assert exchange_of(devices, 2) == exchange_of(devices * 2, 2) == "nccl"
    assert exchange_of(devices * 2, 4) == exchange_of([Device("cpu")] * 2, 2) == "gloo"
    monkeypatch.setattr("sys.platform", "win32")
    assert exchange_of(devices, 2) == "gloo"


def test_each_engine_has_devices_of_its_own(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: 2)  # they wait for their devices
    plan = plan_on(machine(*FOUR), dp=4)
    assert plan.engines is not None and plan.engines.devices == ((0,), (1,), (2,), (3,))
    assert plan.memory_limit == 136 * GIB * 90 // 100
    third = plan_of_engine(plan, 2)
    assert third.device.torch_name == "cuda:2" and third.attention[0].need.device.index == 2
    assert "devices       engine 0: cuda:0 | engine 1: cuda:1 |" in explained(plan)
    both = plan_on(machine(*FOUR), dp=2, tp=2)
    second = plan_of_engine(both, 1)
    assert second.ranks is not None and second.ranks.devices == (2, 3)
    assert [plan_of_rank(second, rank).device.index for rank in (0, 1)] == [2, 3]


def test_steps_of_ranks_do_not_overlap(machine: Callable[..., Machine]) -> None:
    """They are told what a step drew before the next one."""
    assert plan_on(machine(*FOUR)).overlap
    assert not plan_on(machine(*FOUR), tp=2).overlap


def test_ranks_are_bound_to_the_cores_near_their_devices() -> None:
    nodes = {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}
    assert rank_cores("auto", 3, nodes, [1, 0, 1]) == ((4, 5), (0, 1, 2, 3), (6, 7))
    assert rank_cores("auto", 2, nodes, [1, None]) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert rank_cores("0,1", 2, nodes, [1, 1]) == ((0, 1, 2, 3), (4, 5, 6, 7)), "as was asked"
