"""What the machine can do right now, and who else is using it. Linux only: reads /proc."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from attrs import frozen

_TICKS = os.sysconf("SC_CLK_TCK")
_QUIET_CORES = 0.1
_CLEAN_CORES = 0.15


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
    """How many cores other processes, and other guests of the same host, used while this was
    open."""

    def __enter__(self) -> Neighbours:
        self._busy, self._own, self._start = _busy_seconds(), _own_seconds(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        self.cores = max(0.0, others / (time.perf_counter() - self._start))

    @property
    def clean(self) -> bool:
        return self.cores < _CLEAN_CORES


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


def _busy_seconds() -> float:
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


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
