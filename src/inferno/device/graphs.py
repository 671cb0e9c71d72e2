"""Captures a model's decode steps as CUDA graphs: one launch then runs all kernels of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from inferno.contracts import Uncaptured

WARM_UPS = 2
"""Runs before a capture: kernels are compiled in the first, and tuned by the second."""


@frozen(eq=False)
class Graph:
    """A captured computation (`contracts.Captured`)."""

    output: Tensor
    graph: torch.cuda.CUDAGraph

    def replay(self) -> None:
        """Launch all kernels again. Returns before they have run."""
        self.graph.replay()


@define(eq=False)
class GraphCapture:
    """Captures a model's computations (`contracts.Capture`). Only one graph runs at a time, so all
    share one memory pool: capture the largest first, and the others fit into its memory.

    Each graph copies its result to the beginning of the largest one, so that the pool does not hold
    a result for each size.
    """

    _pool: Any = None
    _stream: Any = None
    _largest: Tensor | None = field(init=False, default=None)

    def __call__(self, compute: Callable[[], Tensor]) -> Graph:
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._warm_up(compute)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                output = self._placed(compute())
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise Uncaptured(_reason(error)) from error
        self._pool = graph.pool()
        if self._largest is None or output.nbytes > self._largest.nbytes:
            self._largest = output
        return Graph(output, graph)

    def _placed(self, output: Tensor) -> Tensor:
        """Copy a result to the beginning of the largest one, if it fits."""
        largest = self._largest
        if largest is None or len(output) > len(largest):
            return output
        return largest[: len(output)].copy_(output)

    def _warm_up(self, compute: Callable[[], Tensor]) -> None:
        """Run on the capture's stream, so that kernels and buffers made on first use exist."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                compute()
        current.wait_stream(self._stream)
        torch.cuda.synchronize()


def _reason(error: BaseException) -> str:
    """Name what cannot be captured, and the module's method that called it. An error inside a
    capture also makes the end of the capture fail: the first error is reported."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    what = str(error).partition("\n")[0].rstrip(".")
    return f"{what}, in {_caller(error.__traceback__)}"


def _caller(trace: TracebackType | None) -> str:
    methods = list(_methods(trace))
    return methods[-1] if methods else "no module"


def _methods(trace: TracebackType | None) -> Iterator[str]:
    """Name the methods of modules that an error passed, the outermost first."""
    while trace is not None:
        frame, line = trace.tb_frame, trace.tb_lineno
        owner = frame.f_locals.get("self")
        ours = frame.f_globals.get("__name__", "").partition(".")[0] != "torch"
        if ours and isinstance(owner, nn.Module):
            code = frame.f_code
            where = f"{Path(code.co_filename).name}:{line}"
            yield f"{type(owner).__name__}.{code.co_name} ({where})"
        trace = trace.tb_next
