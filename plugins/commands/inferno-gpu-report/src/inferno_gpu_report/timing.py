"""Times of computations on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from attrs import frozen

from inferno.contracts import Device

Call = Callable[[], object]

_ROUNDS = 5
_ROUND_SECONDS = 0.03
"""A round repeats the call for at least so long: clocks need it."""
_MOST_CALLS = 2000


@frozen
class Timing:
    """How long a call takes."""

    seconds: float
    """The median of some rounds."""
    captured: bool
    """Whether it ran as one CUDA graph: else the time to launch its kernels counts too."""

    @property
    def detail(self) -> str:
        """What a reader must know about it."""
        return "" if self.captured else "launched one by one"


def timed(call: Call, device: Device, *, capture: bool = True) -> Timing:
    """Time a call, after two to warm up: on a CUDA device as a graph, if it can be captured."""
    call()
    call()
    if device.kind == "cpu":
        return Timing(statistics.median(_on_cpu(call) for _ in range(3)), captured=True)
    torch.cuda.synchronize()
    replay = _captured(call) if capture else None
    return Timing(_on_cuda(replay or call), captured=replay is not None)


def _on_cpu(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _captured(call: Call) -> Call | None:
    """Return the replay of the call as a CUDA graph; None if it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


def _on_cuda(call: Call) -> float:
    def seconds(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    one = max(seconds(1), 1e-6)
    count = max(1, min(_MOST_CALLS, int(_ROUND_SECONDS / one)))
    return statistics.median(seconds(count) / count for _ in range(_ROUNDS))
