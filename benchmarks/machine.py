"""What the machine is, what it can do right now, and who else is using it. Linux only: reads
/proc."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from attrs import frozen

_TICKS = os.sysconf("SC_CLK_TCK")
_QUIET_CORES = 0.1
_CLEAN_CORES = 0.15
_TRIES = 5


_FEATURES = {
    "avx2": "AVX2",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx512_bf16": "BF16",
    "amx_int8": "AMX int8",
    "amx_bf16": "AMX bf16",
    "asimddp": "NEON dot product",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "SVE",
}
"""Of the flags in /proc/cpuinfo, those that kernels are chosen by."""


@frozen(kw_only=True)
class Machine:
    """What the results of a run were measured on."""

    processor: str
    """Its name, and what tells one from another where a virtual machine hides the name."""
    features: Sequence[str]
    flags: str
    """All of them, as the kernel of the operating system lists them."""
    cores: int
    gigabytes: float
    """Of memory, in all."""
    system: str
    peaks: Mapping[str, float] = {}
    """Operations per second, in 10^9, that an instruction does on all threads, out of
    registers."""


def this_machine(threads: int) -> Machine:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = [line.partition(":") for line in lines]
    about = {key.strip(): value.strip() for key, _, value in fields}
    flags = about.get("flags") or about.get("Features", "")
    words = set(flags.split())
    total = next(
        int(line.split()[1]) * 1024 / 1e9
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal")
    )
    return Machine(
        processor=processor_name(about),
        features=[name for flag, name in _FEATURES.items() if flag in words],
        flags=flags,
        cores=len(os.sched_getaffinity(0)),
        gigabytes=round(total, 1),
        system=f"{os.uname().sysname} {os.uname().release.partition('-')[0]}",
        peaks=instruction_peaks(threads),
    )


def processor_name(about: Mapping[str, str]) -> str:
    """The name out of /proc/cpuinfo's fields, with the numbers that identify the design."""
    numbers = ("cpu family", "model", "stepping", "CPU implementer", "CPU part")
    known = [f"{name.removeprefix('cpu ')} {about[name]}" for name in numbers if name in about]
    name = about.get("model name") or about.get("Processor") or os.uname().machine
    return f"{name} ({', '.join(known)})" if known else name


@frozen
class Speed:
    """The machine's own limits, measured with as many threads as the engines have."""

    gigabytes: float
    """Read from memory per second."""
    gigaflops: float
    """Of a 2048^3 matrix product, per second: bf16, or float32 where that is the faster one."""

    def mean(self, other: Speed) -> Speed:
        return Speed((self.gigabytes + other.gigabytes) / 2, (self.gigaflops + other.gigaflops) / 2)


class Probe:
    """Measures Speed in some tenths of a second."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._numbers = torch.ones(1 << 27)  # 512 MiB, far more than any cache
        small = torch.randn(512, 512)
        dtype = min(
            (torch.bfloat16, torch.float32), key=lambda dtype: _product_seconds(small.to(dtype))
        )
        self._matrix = torch.randn(2048, 2048).to(dtype)

    def __call__(self) -> Speed:
        read = _median_seconds(self._numbers.sum, 4)
        return Speed(
            self._numbers.nbytes / read / 1e9, 2 * 2048**3 / _product_seconds(self._matrix) / 1e9
        )


def _product_seconds(matrix: torch.Tensor) -> float:
    return _median_seconds(lambda: torch.mm(matrix, matrix), 3)


def _median_seconds(call: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


class Neighbours:
    """How many cores other processes used while this was open, and how many the host took away for
    other guests. The host's share does not repeat a round: on many machines it never ends."""

    def __enter__(self) -> Neighbours:
        self._busy, self._steal = _busy_seconds()
        self._own, self._start = _own_seconds(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        busy, steal = _busy_seconds()
        seconds = time.perf_counter() - self._start
        others = (busy - self._busy) - (_own_seconds() - self._own)
        self.cores = max(0.0, others / seconds)
        self.stolen = max(0.0, (steal - self._steal) / seconds)

    @property
    def clean(self) -> bool:
        return self.cores < _CLEAN_CORES


def instruction_peaks(threads: int) -> dict[str, float]:
    """Operations per second, in 10^9, of the instructions that the native kernels multiply each
    type with, on as many threads, out of registers: the best of some tries. Empty without the
    native kernels."""
    try:
        from inferno_cpu import _native
    except ImportError:
        return {}
    if not hasattr(_native, "peak"):
        return {}
    _native.set_threads(threads)
    kinds = ("float32", "bfloat16", "int8")
    return {kind: max(_native.peak(kind) for _ in range(_TRIES)) / 1e9 for kind in kinds}


def wait_for_quiet(patience: float = 6.0) -> None:
    """Until others leave the machine alone, or patience (in seconds) is over."""
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        with Neighbours() as neighbours:
            time.sleep(0.3)
        if neighbours.cores < _QUIET_CORES:
            return


def multiplies_bf16() -> bool:
    """Whether the processor has instructions for it. Without, bf16 is slower than float32 in
    engines that only offer both."""
    return any(
        flag in Path("/proc/cpuinfo").read_text() for flag in ("avx512_bf16", "amx_bf16", " bf16 ")
    )


def available_gigabytes() -> float:
    """Memory that a new process could take."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(
        int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("MemAvailable")
    )


def peak_gigabytes(pid: int) -> float:
    """The sum of the highest resident sizes of a process and those it started."""
    kilobytes = 0
    for member in _tree(pid):
        try:
            status = Path(f"/proc/{member}/status").read_text()
        except OSError:
            continue
        kilobytes += sum(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")
        )
    return kilobytes * 1024 / 1e9


def _busy_seconds() -> tuple[float, float]:
    """Of all processes, and those that the host took for itself and other guests."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq) / _TICKS, steal / _TICKS


def _own_seconds() -> float:
    return sum(_cpu_seconds(pid) for pid in _tree(os.getpid()))


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS  # with those of children that ended


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))
    except OSError:
        return
