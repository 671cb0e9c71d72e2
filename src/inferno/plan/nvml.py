"""The GPUs that NVIDIA's driver reports: through its management library (NVML), or else through
`nvidia-smi`. Neither starts CUDA, which would take memory on each GPU."""

from __future__ import annotations

import ctypes
import subprocess
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

from attrs import evolve, frozen

from inferno import host

LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_FIELDS = "uuid,name,compute_cap,memory.total,memory.free,pci.bus_id,mig.mode.current"


@frozen(kw_only=True)
class Gpu:
    """A GPU, or an instance of one that is partitioned (MIG)."""

    uuid: str
    """"GPU-..." or "MIG-...", by which `CUDA_VISIBLE_DEVICES` may name it."""
    alias: str = ""
    """An instance's older name: "MIG-GPU-.../1/0"."""
    name: str
    capability: tuple[int, int] | None
    total: int
    """Bytes; 0 if it shares the host's memory."""
    free: int
    bus: str
    """PCI address as in /sys: "0000:41:00.0"."""
    instances: tuple[Gpu, ...] | None = None
    """Those of a partitioned GPU, which cannot be used as a whole. None if it is whole."""


def gpus() -> tuple[Gpu, ...]:
    """Return this machine's GPUs in the order of their PCI addresses; none without a driver. Raises
    OSError if the driver fails."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:  # no driver, or its library is elsewhere
        return by_nvidia_smi()
    return by_nvml(library)


def by_nvml(library: Any) -> tuple[Gpu, ...]:
    """Return the GPUs that NVML reports. Raises OSError."""
    nvml = _Nvml(library)
    nvml.call("nvmlInit_v2")
    try:
        gpus = [nvml.gpu(i) for i in range(nvml.number("nvmlDeviceGetCount_v2"))]
    finally:
        library.nvmlShutdown()
    return tuple(sorted((gpu for gpu in gpus if gpu is not None), key=lambda gpu: gpu.bus))


def by_nvidia_smi() -> tuple[Gpu, ...]:
    """Return the GPUs that `nvidia-smi` lists, without instances, whose memory it omits."""
    command = ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [[cell.strip() for cell in line.split(",")] for line in run.stdout.splitlines()]
    gpus = [
        Gpu(
            uuid=uuid,
            name=name,
            capability=_capability(capability),
            total=_mebibytes(total),
            free=_mebibytes(free),
            bus=_bus(*bus.split(":", 1)),
            instances=() if partitioned == "Enabled" else None,
        )
        for uuid, name, capability, total, free, bus, partitioned in rows
    ]
    return tuple(sorted(gpus, key=lambda gpu: gpu.bus))


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _mebibytes(text: str) -> int:
    return int(text) * host.UNITS["MI"] if text.isdecimal() else 0


def _bus(domain: str, rest: str) -> str:
    return f"{int(domain, 16):04x}:{rest.lower()}"


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Pci(ctypes.Structure):
    _fields_ = (
        ("old_address", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("device_id", c_uint),
        ("subsystem_id", c_uint),
        ("address", c_char * 32),
    )


@frozen
class _Nvml:
    """NVML's functions; each returns a status, and its results through pointers."""

    library: Any

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the library. Raises OSError with NVML's reason."""
        try:
            entry = getattr(self.library, function)
        except AttributeError:
            raise OSError(f"the driver is too old: it has no {function}") from None
        if status := entry(*arguments):
            self.library.nvmlErrorString.restype = ctypes.c_char_p
            reason = self.library.nvmlErrorString(status) or b"unknown error"
            raise OSError(f"{function}: {reason.decode(errors='replace')}")

    def number(self, function: str, *arguments: Any) -> int:
        value = c_uint()
        self.call(function, *arguments, byref(value))
        return value.value

    def text(self, function: str, handle: c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(function, handle, buffer, c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def gpu(self, index: int) -> Gpu | None:
        """Return one GPU, or None if this process may not use it or it has failed."""
        handle = c_void_p()
        try:
            self.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
            gpu = self._described(handle)
        except OSError:
            return None
        return evolve(gpu, instances=self._instances(handle, gpu))

    def _described(self, handle: c_void_p, parent: Gpu | None = None) -> Gpu:
        uuid = self.text("nvmlDeviceGetUUID", handle)
        name = self.text("nvmlDeviceGetName", handle)
        total, free = self._memory(handle)
        if parent is not None:
            return evolve(parent, uuid=uuid, name=name, total=total, free=free)
        pci, major, minor = _Pci(), c_int(), c_int()
        self.call("nvmlDeviceGetPciInfo_v3", handle, byref(pci))
        self.call("nvmlDeviceGetCudaComputeCapability", handle, byref(major), byref(minor))
        return Gpu(
            uuid=uuid,
            name=name,
            capability=(major.value, minor.value),
            total=total,
            free=free,
            bus=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        )

    def _memory(self, handle: c_void_p) -> tuple[int, int]:
        """Return total and free bytes; 0 for a GPU without memory of its own."""
        memory = _Memory()
        try:
            self.call("nvmlDeviceGetMemoryInfo", handle, byref(memory))
        except OSError:
            return 0, 0
        return memory.total, memory.free

    def _instances(self, handle: c_void_p, gpu: Gpu) -> tuple[Gpu, ...] | None:
        """Return the instances of a partitioned GPU, or None if it is whole."""
        current, after_reset = c_uint(), c_uint()
        try:
            self.call("nvmlDeviceGetMigMode", handle, byref(current), byref(after_reset))
        except OSError:  # it cannot be partitioned
            return None
        if not current.value:
            return None
        instances = []
        for index in range(self.number("nvmlDeviceGetMaxMigDeviceCount", handle)):
            instance = c_void_p()
            try:
                self.call(
                    "nvmlDeviceGetMigDeviceHandleByIndex", handle, c_uint(index), byref(instance)
                )
            except OSError:  # this place is empty
                continue
            group = self.number("nvmlDeviceGetGpuInstanceId", instance)
            part = self.number("nvmlDeviceGetComputeInstanceId", instance)
            described = self._described(instance, gpu)
            instances.append(evolve(described, alias=f"MIG-{gpu.uuid}/{group}/{part}"))
        return tuple(instances)
