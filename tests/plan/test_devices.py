"""Which devices a machine has, which of them a process may use, and what a plan says about one:
from a fake driver, a fake `nvidia-smi` and a fake /sys, without torch and without a GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch

from inferno import host
from inferno.catalog import Catalog, Offer, load_catalog
from inferno.cli.render import explained
from inferno.contracts import GROUPED, LINEAR, OPS, Device, KernelNeed, KernelProvider
from inferno.device import check_device
from inferno.errors import DeviceError, OptionError, OutOfMemoryError
from inferno.plan import (
    Gpu,
    Machine,
    Options,
    Plan,
    find_device,
    open_model,
    plan_from_json,
    plan_to_json,
    reopen,
    resolve,
)
from inferno.plan.devices import visible
from inferno.plan.nvml import by_nvidia_smi, by_nvml

pytest.importorskip("inferno_demo")

GIB = 1 << 30
FREE_ON_B = 30 * GIB
A = Gpu(
    uuid="GPU-aa11",
    name="Tesla V100",
    capability=(7, 0),
    total=16 * GIB,
    free=15 * GIB,
    bus="0000:17:00.0",
)
B = Gpu(
    uuid="GPU-bb22",
    name="NVIDIA H200",
    capability=(9, 0),
    total=140 * GIB,
    free=FREE_ON_B,
    bus="0000:41:00.0",
)
TWO_OF_B = attrs.evolve(
    B,
    instances=tuple(
        attrs.evolve(
            B,
            uuid=f"MIG-{i}{i}",
            alias=f"MIG-GPU-bb22/{i}/0",
            name=f"{B.name} MIG 1g.18gb",
            total=18 * GIB,
        )
        for i in (1, 2)
    ),
)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    """Builds a machine with these GPUs and this environment; its files are under `tmp_path`."""

    def build(*gpus: Gpu, system: str = "Linux", **environ: str) -> Machine:
        return Machine(gpus=lambda: gpus, environ=environ, root=tmp_path, system=(system, "arm64"))

    return build


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# --- the CPU --------------------------------------------------------------------------------------


def test_a_cpu_is_described_by_proc_and_its_cgroup(tmp_path: Path) -> None:
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU\nmodel name\t: Another\n")
    write(tmp_path / "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    3000 kB\n")
    cpu = find_device("cpu", Machine(root=tmp_path))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (cpu.kind, cpu.index, cpu.name) == ("cpu", 0, "A CPU")
    assert (cpu.total, cpu.free) == (physical, 3000 * 1024)
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    assert host.memory(tmp_path) == (physical, 3000 * 1024), "no limit"
    write(tmp_path / "sys/fs/cgroup/memory.max", "1000000\n")
    assert host.memory(tmp_path) == (1_000_000, 1_000_000), "a limit, even if the use is unknown"
    write(tmp_path / "sys/fs/cgroup/memory.current", "900000\n")
    write(tmp_path / "sys/fs/cgroup/memory.stat", "anon 400000\ninactive_file 300000\n")
    assert host.memory(tmp_path) == (1_000_000, 400_000), "files that are only cached are free"
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n")
    assert host.memory(tmp_path) == (500_000, 400_000), "and version 1"


def test_a_machine_without_proc_still_has_a_cpu(tmp_path: Path) -> None:
    cpu = find_device("cpu", Machine(root=tmp_path))
    assert cpu.name and cpu.free == cpu.total > 0


# --- the driver -----------------------------------------------------------------------------------


class FakeNvml:
    """The functions of NVML over these GPUs. A handle is a position in `handles`, from 1 on."""

    def __init__(self, *gpus: Gpu, failed: Sequence[str] = (), fails_with: int = 0) -> None:
        self.gpus, self.failed, self.fails_with = gpus, failed, fails_with
        self.handles: list[Gpu | None] = [
            None,
            *gpus,
            *(i for gpu in gpus for i in gpu.instances or ()),
        ]
        self.running = 0
        self.nvmlErrorString = lambda status: b"Driver/library version mismatch"

    def nvmlInit_v2(self) -> int:
        self.running += not self.fails_with
        return self.fails_with

    def nvmlShutdown(self) -> int:
        self.running -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        return put(count, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        return put(handle, 1 + index.value)

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = self.gpu(handle).uuid.encode()
        return 15 if self.gpu(handle).uuid in self.failed else 0

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:
        assert len(self.gpu(handle).name) < size.value
        buffer.value = self.gpu(handle).name.encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        gpu = self.gpu(handle)
        memory._obj.total, memory._obj.free = gpu.total, gpu.free
        return 0 if gpu.total else 3

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, pci: Any) -> int:
        domain, bus, device = self.gpu(handle).bus.removesuffix(".0").split(":")
        pci._obj.domain, pci._obj.bus = int(domain, 16), int(bus, 16)
        pci._obj.device = int(device, 16)
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        capability = self.gpu(handle).capability
        assert capability is not None
        put(major, capability[0])
        return put(minor, capability[1])

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, after_reset: Any) -> int:
        if self.gpu(handle).capability == (7, 0):
            return 3  # not supported
        put(after_reset, 0)  # NVML writes to both
        return put(current, int(self.gpu(handle).instances is not None))

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, count: Any) -> int:
        return put(count, 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, instance: Any) -> int:
        instances = self.gpu(handle).instances or ()
        place = index.value - 1  # the first place is empty
        if not 0 <= place < len(instances):
            return 6
        return put(instance, self.handles.index(instances[place]))

    def nvmlDeviceGetGpuInstanceId(self, handle: Any, number: Any) -> int:
        return put(number, int(self.gpu(handle).alias.split("/")[1]))

    def nvmlDeviceGetComputeInstanceId(self, handle: Any, number: Any) -> int:
        return put(number, int(self.gpu(handle).alias.split("/")[2]))

    def gpu(self, handle: Any) -> Gpu:
        device: Gpu | None = self.handles[handle.value]
        assert device is not None
        return device


def put(pointer: Any, value: int) -> int:
    pointer._obj.value = value
    return 0


def test_nvml_tells_everything_in_the_order_of_pci_addresses() -> None:
    library = FakeNvml(TWO_OF_B, A)
    assert by_nvml(library) == (A, TWO_OF_B)
    assert library.running == 0, "the library is released"


def test_a_gpu_that_fails_is_left_out() -> None:
    assert by_nvml(FakeNvml(A, B, failed=[A.uuid])) == (B,)


def test_a_gpu_without_memory_of_its_own_has_the_hosts(machine: Callable[..., Machine]) -> None:
    [shared] = by_nvml(FakeNvml(attrs.evolve(B, total=0, free=0)))
    device = find_device("cuda", machine(shared))
    assert (device.total, device.free) == host.memory()[:1] * 2, "this machine tells nothing free"


def test_a_driver_that_fails_says_why(machine: Callable[..., Machine]) -> None:
    broken = attrs.evolve(machine(), gpus=lambda: by_nvml(FakeNvml(fails_with=18)))
    with pytest.raises(DeviceError, match="no device cuda.*version mismatch") as caught:
        find_device("cuda", broken)
    assert "Devices here: cpu" in caught.value.remedy
    assert find_device("auto", broken).kind == "cpu"


def test_a_driver_without_a_function_is_too_old() -> None:
    with pytest.raises(OSError, match="too old: it has no nvmlInit_v2"):
        by_nvml(SimpleNamespace())


def test_the_structures_have_the_sizes_of_nvml() -> None:
    from inferno.plan.nvml import _Memory, _Pci

    assert (ctypes.sizeof(_Memory), ctypes.sizeof(_Pci)) == (24, 68)


def test_nvidia_smi_answers_where_the_library_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert by_nvidia_smi() == (), "there is none"
    rows = [
        f"{B.uuid}, {B.name}, 9.0, {140 * 1024}, {30 * 1024}, 00000000:41:00.0, Disabled",
        f"{A.uuid}, {A.name}, 7.0, {16 * 1024}, {15 * 1024}, 00000000:17:00.0, [N/A]",
        "GPU-cc, Old, [N/A], [N/A], [N/A], 00000001:C1:00.0, Enabled",
    ]
    script = tmp_path / "nvidia-smi"
    write(script, "#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    script.chmod(0o755)
    first, second, third = by_nvidia_smi()
    assert (first, second) == (A, B)
    assert (third.capability, third.total, third.bus) == (None, 0, "0001:c1:00.0")
    assert third.instances == (), "its instances are unknown, and it cannot be used as a whole"
    script.write_text("#!/bin/sh\nexit 9\n")
    assert by_nvidia_smi() == ()


# --- which of them a process may use --------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, "BA"),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "BA"),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "AB"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "B"),
        ({"CUDA_VISIBLE_DEVICES": "1, 0"}, "AB"),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "A"),
        ({"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "BA"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, "B"),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, "B"),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "none"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa11,GPU-bb22"}, "AB"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, "B"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "GPU-zz,GPU-aa11"}, ""),
    ],
)
def test_cuda_visible_devices_selects_and_orders(environ: Mapping[str, str], names: str) -> None:
    assert visible([A, B], environ) == [{"A": A, "B": B}[name] for name in names]


@pytest.mark.parametrize(
    ("listed", "uuid"),
    [
        (None, "MIG-11"),
        ("0", "MIG-11"),
        ("1", "GPU-aa11"),
        ("MIG-22", "MIG-22"),
        ("MIG-GPU-bb22/2/0", "MIG-22"),
        ("MIG-22,MIG-11", "MIG-22"),
        ("1,0", "MIG-11"),
        ("MIG-", None),
        ("MIG-33", None),
    ],
)
def test_of_a_partitioned_gpu_one_instance_is_shown_and_then_nothing_else(
    listed: str | None, uuid: str | None
) -> None:
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert [gpu.uuid for gpu in visible([A, TWO_OF_B], environ)] == ([uuid] if uuid else [])


def test_a_partitioned_gpu_without_instances_is_not_shown() -> None:
    assert visible([A, attrs.evolve(B, instances=())], {}) == [A]


def test_each_gpu_has_its_own_number_memory_and_node(
    machine: Callable[..., Machine], tmp_path: Path
) -> None:
    write(tmp_path / f"sys/bus/pci/devices/{B.bus}/numa_node", "1\n")
    write(tmp_path / f"sys/bus/pci/devices/{A.bus}/numa_node", "-1\n")
    both = machine(A, B)
    assert find_device("auto", both) == find_device("cuda", both) == find_device("cuda:0", both)
    first, second = find_device("cuda:0", both), find_device("cuda:1", both)
    assert (first.name, first.index, first.torch_name) == ("NVIDIA H200", 0, "cuda:0")
    assert (first.capability, first.total, first.free) == ((9, 0), B.total, B.free)
    assert (first.shared_memory, first.numa_node) == (232_448, 1)
    assert (second.name, second.torch_name, second.free) == ("Tesla V100", "cuda:1", A.free)
    assert (second.shared_memory, second.numa_node) == (98_304, None)
    unheard_of = find_device("cuda", machine(attrs.evolve(B, capability=(99, 0))))
    assert unheard_of.shared_memory is None


@pytest.mark.parametrize("asked", ["cuda:2", "cuda:99", "cpu:1", "mps"])
def test_a_device_that_is_not_here_is_refused_with_those_that_are(
    machine: Callable[..., Machine], asked: str
) -> None:
    with pytest.raises(DeviceError, match=f"no device {asked}") as caught:
        find_device(asked, machine(A, B))
    assert "cuda:0 (NVIDIA H200), cuda:1 (Tesla V100)." in caught.value.remedy
    assert "hides" not in caught.value.remedy and caught.value.exit_code == 2


def test_an_invisible_device_is_refused_with_the_reason(machine: Callable[..., Machine]) -> None:
    for listed, hidden in (("1", 1), ("", 2)):
        with pytest.raises(DeviceError, match="no device cuda:1") as caught:
            find_device("cuda:1", machine(A, B, CUDA_VISIBLE_DEVICES=listed))
        assert f"CUDA_VISIBLE_DEVICES={listed!r} hides {hidden} more" in caught.value.remedy
    assert find_device("auto", machine(A, B, CUDA_VISIBLE_DEVICES="")).kind == "cpu"


@pytest.mark.parametrize("asked", ["tpu", "auto:1", "cuda:", "cuda:-1", "cuda:one", "", "CPU"])
def test_a_string_that_names_no_device_is_refused(
    machine: Callable[..., Machine], asked: str
) -> None:
    with pytest.raises(DeviceError, match="is not known") as caught:
        find_device(asked, machine())
    assert "cuda:N" in caught.value.remedy


def test_apples_and_intels_gpus_have_the_hosts_memory(machine: Callable[..., Machine]) -> None:
    mac = machine(system="Darwin")
    assert find_device("mps", mac).torch_name == find_device("mps:0", mac).torch_name == "mps"
    assert find_device("auto", mac).kind == "cpu", "an Apple GPU is used when it is asked for"
    intel = find_device("xpu:1", machine())
    assert intel.torch_name == "xpu:1" and intel.total == find_device("cpu", machine()).total


# --- in the plan ----------------------------------------------------------------------------------


def plan_on(machine: Machine, catalog: Catalog | None = None, **options: Any) -> Plan:
    return resolve("demo", Options(**{"device": "cuda", **options}), catalog, machine)


def test_a_plans_budget_is_what_is_free_on_its_own_gpu(machine: Callable[..., Machine]) -> None:
    both = machine(A, B)
    assert plan_on(both).memory_limit == FREE_ON_B * 90 // 100
    assert plan_on(both, device="cuda:1").memory_limit == 15 * GIB * 90 // 100
    assert plan_on(both, memory="2GiB").memory_limit == 2 * GIB
    assert plan_on(both, gpu_memory_utilization=0.2).memory_limit == 28 * GIB, "as in vLLM"
    assert plan_on(both, memory="20%").memory_limit == 28 * GIB
    for options in ({"gpu_memory_utilization": 0.9}, {"memory": "90%"}, {"memory": "31GiB"}):
        with pytest.raises(OutOfMemoryError, match=r"30.0 GiB of 140.0 GiB are free on cuda:0"):
            plan_on(both, **options)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_a_share_that_cannot_be_is_refused(machine: Callable[..., Machine], share: float) -> None:
    with pytest.raises(OptionError, match=f"gpu_memory_utilization is {share}"):
        plan_on(machine(A, B), gpu_memory_utilization=share)


@pytest.mark.parametrize(
    ("flags", "disable", "packs"),
    [
        ("avx512bw avx512vl avx512dq", ("inferno-cpu",), True),
        ("fp bf16", ("inferno-cpu",), True),
        ("avx512bw avx512vl", ("inferno-cpu",), False),
        ("avx512bw avx512vl avx512dq", (), False),
    ],
    ids=["x86", "ARM", "neither", "a provider takes them"],
)
def test_onednn_packs_dense_matrices_that_no_provider_takes(
    flags: str, disable: tuple[str, ...], packs: bool, tmp_path: Path
) -> None:
    write(tmp_path / "proc/cpuinfo", f"flags\t\t: {flags}\n")
    given: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16"}
    here = Machine(root=tmp_path)
    plan = plan_on(here, load_catalog(disable=disable), **given)
    assert plan.onednn == packs
    assert not plan_on(here, load_catalog(disable=disable), isq="q8_0", **given).onednn
    assert not plan_on(here, load_catalog(disable=disable), device="cpu", dtype="float32").onednn


def test_every_need_names_the_plans_device(machine: Callable[..., Machine]) -> None:
    plan = plan_on(machine(A, B), device="cuda:1")
    assert plan.device == find_device("cuda:1", machine(A, B))
    assert all(use.need.device == plan.device for use in plan.attention)
    assert {use.name for use in plan.attention} == {"torch"} and plan.kernels == ()
    refusal = next(r for r in plan.considered if r.name == "cpu")
    assert refusal.reason == "it runs on the CPU, not on cuda:1 (Tesla V100)"


def test_a_device_survives_the_plans_document_whole(machine: Callable[..., Machine]) -> None:
    plan = plan_on(machine(B))
    again = plan_from_json(plan_to_json(plan))
    assert again == plan and attrs.asdict(again.device) == attrs.asdict(plan.device)
    assert again.device.free == FREE_ON_B, "equality leaves it out"


def test_a_provider_refuses_a_gpu_by_its_capability(machine: Callable[..., Machine]) -> None:
    def refuses(need: KernelNeed) -> str | None:
        if need.device.kind != "cuda" or (need.device.capability or (0, 0)) < (8, 9):
            return f"it multiplies in FP8 (sm_89 or later), which {need.device} cannot"
        return None

    ops = dict.fromkeys((LINEAR, GROUPED, *OPS), "nowhere:op")
    provider = KernelProvider(name="fp8", ops=ops, refuses=refuses)
    installed = load_catalog()
    offers = {**installed.offers, "inferno_kernels": (Offer(provider, "inferno"),)}
    catalog = Catalog(installed.plugins, offers)
    on_b, on_a = (plan_on(machine(gpu), catalog) for gpu in (B, A))
    assert {use.name for use in on_b.kernels} == {"fp8"} and on_a.kernels == ()
    reason = "it multiplies in FP8 (sm_89 or later), which cuda:0 (Tesla V100) cannot"
    assert reason in {refusal.reason for refusal in on_a.considered}


def test_explain_shows_the_device(machine: Callable[..., Machine], tmp_path: Path) -> None:
    write(tmp_path / f"sys/bus/pci/devices/{B.bus}/numa_node", "1\n")
    shown = explained(plan_on(machine(B)))
    assert "bfloat16 on cuda:0\n" in shown
    assert (
        "NVIDIA H200, 30.0 GiB of 140.0 GiB free, compute capability 9.0, 227.0 KiB of shared"
        in shown
    )
    assert "NUMA node 1" in shown
    bare = explained(plan_on(machine(attrs.evolve(B, capability=None)), device="cuda"))
    [device] = [line for line in bare.splitlines() if "NVIDIA H200, 30.0 GiB" in line]
    assert "capability" not in device and "shared" not in device


# --- when a plan is opened again ------------------------------------------------------------------


def test_a_plan_is_opened_on_the_device_it_was_made_for(machine: Callable[..., Machine]) -> None:
    plan = plan_on(machine(A, B))
    busy = attrs.evolve(B, free=GIB)
    with reopen(plan, machine=machine(A, busy)) as opened:
        assert opened.plan == plan
    with pytest.raises(DeviceError, match=r"cuda:0 \(NVIDIA H200\), but cuda:0 \(Tesla V100\)"):
        reopen(plan, machine=machine(A))
    with pytest.raises(DeviceError, match="but there is no device cuda:0") as caught:
        reopen(plan, machine=machine(A, B, CUDA_VISIBLE_DEVICES=""))
    assert "hides 2 more" in caught.value.remedy and "--lock" in caught.value.remedy


def test_a_plan_for_a_cpu_is_opened_on_any_cpu(machine: Callable[..., Machine]) -> None:
    plan = plan_on(machine(), device="cpu")
    elsewhere = attrs.evolve(plan, device=attrs.evolve(plan.device, name="Another CPU"))
    reopen(elsewhere, machine=machine()).close()


def test_a_gpu_without_bfloat16_computes_in_float16_and_says_so(
    machine: Callable[..., Machine],
) -> None:
    old, new = plan_on(machine(A)), plan_on(machine(B))
    assert (old.dtype, new.dtype) == ("float16", "bfloat16")
    [note] = [note for note in old.notes if "float16" in note]
    assert "Tesla V100) has compute capability 7.0, bfloat16 needs 8.0" in note
    assert not [note for note in new.notes if "float16" in note]
    assert plan_on(machine(A), dtype="float32").dtype == "float32"
    assert plan_on(machine(), dtype="bfloat16", device="cpu").dtype == "bfloat16"
    with pytest.raises(OptionError, match="bfloat16 needs 8.0") as caught:
        plan_on(machine(A), dtype="bfloat16")
    assert "--dtype float16" in caught.value.remedy


@pytest.mark.parametrize("device", [Device("cuda", 99), Device("xpu", 99)])
def test_torch_must_find_the_device(device: Device) -> None:
    with pytest.raises(DeviceError, match=f"{device.torch_name}, but torch .* finds no such"):
        check_device(device)


def test_torch_must_find_the_same_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    check_device(Device("cuda", name="NVIDIA H200", capability=(9, 0)))
    check_device(Device("cuda", name="NVIDIA H200 MIG 1g.18gb", capability=(9, 0)))
    with pytest.raises(DeviceError, match="finds a NVIDIA H200") as caught:
        check_device(Device("cuda", name="Tesla V100", capability=(7, 0)))
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in caught.value.remedy


def test_a_plan_for_a_missing_gpu_fails_before_anything_is_read(
    machine: Callable[..., Machine],
) -> None:
    from inferno.core.engine import Engine

    gpus = [attrs.evolve(B, bus=f"0000:{i:02x}:00.0") for i in range(64)]
    with open_model("demo", Options(device="cuda:63"), machine=machine(*gpus)) as opened:
        with pytest.raises(DeviceError, match="cuda:63"):
            Engine.load(opened)
