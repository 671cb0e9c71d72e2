"""Finds the devices of a machine. Imports no torch, and starts no device."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from inferno import host
from inferno.contracts import Device, DeviceKind
from inferno.errors import DeviceError, OptionError
from inferno.plan import nvml
from inferno.plan.nvml import Gpu

KNOWN = "auto, cpu, cuda, cuda:N, mps, xpu"
_ONE_BY_ONE = "Name one for each process: --device cuda:0,cuda:1."

_KIBIBYTES_OF_A_BLOCK = {
    (7, 0): 96,
    (7, 2): 96,
    (7, 5): 64,
    (8, 0): 163,
    (8, 6): 99,
    (8, 7): 163,
    (8, 9): 99,
    (9, 0): 227,
    (10, 0): 227,
    (10, 3): 227,
    (11, 0): 227,
    (12, 0): 99,
    (12, 1): 99,
}
"""Shared memory that a thread block can opt in to, by compute capability (CUDA programming guide,
"Technical Specifications per Compute Capability")."""


@frozen(kw_only=True)
class Machine:
    """Where devices are looked up. The defaults are this machine and this process."""

    gpus: Callable[[], Sequence[Gpu]] = nvml.gpus
    """The GPUs of NVIDIA's driver, by PCI address. May raise OSError."""
    environ: Mapping[str, str] = field(factory=lambda: os.environ)
    root: Path = Path("/")
    """The folder with `proc` and `sys`."""
    system: tuple[str, str] = field(factory=lambda: (platform.system(), platform.machine()))
    """Operating system and architecture: every arm64 Mac has an Apple GPU."""
    elsewhere: bool = False
    """The plan is for a machine with the same devices, but perhaps more memory."""

    def cpu(self) -> Device:
        total, free = host.memory(self.root)
        return Device("cpu", name=host.cpu_name(self.root), total=total, free=free)

    def cpu_flags(self) -> frozenset[str]:
        return host.cpu_flags(self.root)

    def cuda(self) -> list[Device]:
        """Return the CUDA devices that this process may use, in CUDA's order. Raises OSError if the
        driver fails."""
        shared, gpus = host.memory(self.root), visible(self.gpus(), self.environ)
        return [
            Device(
                "cuda",
                index,
                name=gpu.name,
                capability=gpu.capability,
                total=gpu.total or shared[0],
                free=gpu.free if gpu.total else shared[1],
                shared_memory=_shared_memory(gpu.capability),
                numa_node=self._numa_node(gpu.bus),
            )
            for index, gpu in enumerate(gpus)
        ]

    def of_kind(self, kind: DeviceKind) -> list[Device]:
        """Return the devices of this kind. Raises OSError if the driver fails."""
        if kind == "cuda":
            return self.cuda()
        if kind == "cpu":
            return [self.cpu()]
        if kind == "mps" and self.system == ("Darwin", "arm64"):
            total, free = host.memory(self.root)  # its memory is the host's
            return [Device("mps", name="Apple GPU", total=total, free=free)]
        return []

    def _numa_node(self, bus: str) -> int | None:
        file = self.root / "sys/bus/pci/devices" / bus / "numa_node"
        try:
            node = int(file.read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None  # -1: the machine does not say


def find_device(name: str, machine: Machine | None = None) -> Device:
    """Return the device that `name` names: auto, cpu, cuda, cuda:1, mps, xpu. Raises DeviceError,
    which lists those that exist.

    Only torch can tell whether an XPU exists, and how much memory it has: the host's is assumed.
    """
    machine = machine or Machine()
    parsed = re.fullmatch(r"(auto|cpu|cuda|mps|xpu)(?::(\d+))?", name)
    if parsed is None or name.startswith("auto:"):
        raise DeviceError(f"device {name!r} is not known", f"Known: {KNOWN}.")
    kind, index = parsed[1], int(parsed[2] or 0)
    if kind == "auto":
        return _fastest(machine)
    if kind == "xpu":
        total, free = host.memory(machine.root)
        return Device("xpu", index, total=total, free=free)
    problem = ""
    try:
        devices = machine.of_kind(kind)  # type: ignore[arg-type]  # the pattern names the others
    except OSError as error:
        devices, problem = [], f" ({error})"
    if index < len(devices):
        return devices[index]
    raise DeviceError(f"there is no device {name}{problem}", _remedy(machine))


def find_devices(name: str, count: int, machine: Machine | None = None) -> tuple[Device, ...]:
    """Return the device of each of `count` processes, all alike. `name` lists them, or names the
    first one, which the next CUDA devices follow; all processes share a CPU. Another machine
    (`Machine.elsewhere`) has as many as are needed. Raises DeviceError, OptionError."""
    machine, names = machine or Machine(), name.split(",")
    devices = [find_device(each.strip(), machine) for each in names]
    first = devices[0]
    if len(devices) > 1 and len(devices) != count:
        raise OptionError(
            f"--device names {len(devices)} devices for {count} process{'es' * (count > 1)}",
            f"{_ONE_BY_ONE} --tp, --pp and --dp start several.",
        )
    if len(devices) == 1 < count and first.kind == "cuda":
        last = first.index + count
        if machine.elsewhere:
            devices = [evolve(first, index=i) for i in range(first.index, last)]
        else:
            devices = machine.cuda()[first.index : last]
    elif len(devices) == 1:
        devices *= count
    if len(devices) < count:
        raise DeviceError(
            f"{count} processes need a device each, and from {first} on there are {len(devices)}",
            f"Use fewer, or --device cpu. {_remedy(machine)}",
        )
    for other in devices:
        if (other.kind, other.name, other.capability) != (first.kind, first.name, first.capability):
            raise DeviceError(
                f"{first} and {other} differ, and several processes need equal devices",
                f"{_ONE_BY_ONE} {_remedy(machine)}",
            )
    return tuple(devices)


def agree_on_device(planned: Device, machine: Machine | None = None) -> None:
    """Raise DeviceError if this machine does not have the device that a plan was made for. Any CPU
    runs a plan for a CPU, and only torch knows about XPUs."""
    if planned.kind in ("cpu", "xpu"):
        return
    again = "Or make a new plan: `inferno explain REF --lock`."
    try:
        here = find_device(planned.torch_name, machine)
    except DeviceError as error:
        raise DeviceError(
            f"the plan is for {planned}, but {error.cause}", f"{error.remedy} {again}"
        ) from error
    if (here.name, here.capability) != (planned.name, planned.capability):
        raise DeviceError(
            f"the plan is for {planned}, but {here} is here",
            f"Select the planned device with CUDA_VISIBLE_DEVICES. {again}",
        )


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA shows to a process with this environment, in its order.

    `CUDA_VISIBLE_DEVICES` lists numbers or (beginnings of) UUIDs. CUDA ignores what follows an
    invalid entry, and shows nothing if one is repeated. It shows at most one instance of a
    partitioned GPU, and then no other GPU.
    """
    ordered = sorted(gpus, key=lambda gpu: gpu.bus)
    if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        # The default is "fastest first", by a measure that is not published. Loading compares what
        # torch finds with the plan.
        ordered.sort(key=lambda gpu: gpu.capability or (0, 0), reverse=True)
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    listed_gpus = ordered if listed is None else _listed(ordered, listed)
    usable = [
        gpu if gpu.instances is None else next(iter(gpu.instances), None) for gpu in listed_gpus
    ]
    shown = [gpu for gpu in usable if gpu is not None]
    return [gpu for gpu in shown if gpu.uuid.startswith("MIG-")][:1] or shown


def _listed(gpus: Sequence[Gpu], listed: str) -> list[Gpu]:
    shown: list[Gpu] = []
    for entry in listed.split(","):
        gpu = _named(gpus, entry.strip())
        if gpu is None:
            break
        if gpu in shown:
            return []
        shown.append(gpu)
    return shown


def _named(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if number := re.match(r"\+?(\d+)", entry):  # CUDA ignores what follows a number
        index = int(number[1])
        return gpus[index] if index < len(gpus) else None
    every = [*gpus, *(instance for gpu in gpus for instance in gpu.instances or ())]
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matching = [g for g in every if g.uuid.startswith(entry) or g.alias == entry]
    return matching[0] if len(matching) == 1 else None


def _fastest(machine: Machine) -> Device:
    try:
        return next(iter(machine.cuda()), None) or machine.cpu()
    except OSError:
        return machine.cpu()


def _remedy(machine: Machine) -> str:
    """Say which devices exist, and how many GPUs `CUDA_VISIBLE_DEVICES` hides."""
    devices, hidden = [machine.cpu()], 0
    try:
        devices += machine.cuda()
        hidden = len(machine.gpus()) - (len(devices) - 1)
    except OSError:
        pass
    devices += machine.of_kind("mps")
    here = f"Devices here: {', '.join(map(str, devices))}."
    listed = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or hidden < 1:
        return here
    return f"{here} CUDA_VISIBLE_DEVICES={listed!r} hides {hidden} more."


def _shared_memory(capability: tuple[int, int] | None) -> int | None:
    if capability not in _KIBIBYTES_OF_A_BLOCK:
        return None
    return _KIBIBYTES_OF_A_BLOCK[capability] * 1024
