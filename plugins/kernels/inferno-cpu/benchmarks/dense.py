"""How fast the plain matrices are, beside torch's: `python benchmarks/dense.py [4096x1024 ...] [1
16 ...] [--alone]`.

One row: GB/s of weights, and their share of a plain read of the same memory in the same round. More
rows: GFLOP/s, in bfloat16 and, of the same weights, with float32 activations. Each figure is the
median of rounds in which all are taken in turn, since a machine may be slower in one minute than in
the next. Weights are many copies, together larger than the caches.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.nn.weight import Dense
from inferno_cpu import _native
from inferno_cpu.dense import Panels

SHAPES = ["4096x1024", "1024x2048", "6144x1024", "1024x3072", "151936x1024"]
ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 512]
_BEYOND_CACHES = 160 * 1024 * 1024
_SECONDS = 0.05
_ROUNDS = 5

Call = Callable[[], object]


def seconds(call: Call) -> float:
    """Return the seconds of one call, averaged over enough calls to measure."""
    start, calls, elapsed = time.perf_counter(), 0, 0.0
    while elapsed < _SECONDS:
        call()
        calls += 1
        elapsed = time.perf_counter() - start
    return elapsed / calls


def medians(calls: dict[str, Call]) -> dict[str, float]:
    for call in calls.values():
        call()
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(_ROUNDS)]
    return {name: statistics.median(r[name] for r in rounds) for name in calls}


def in_turn(function: Callable[..., object], *arguments: tuple[object, ...]) -> Call:
    """Return a call that passes the next of the arguments each time."""
    turns = cycle(arguments)
    return lambda: function(*next(turns))


def cell(weights: list[Tensor], panels: list[Panels], x_TI: Tensor, alone: bool) -> str:
    out_features, in_features = panels[0].shape
    calls: dict[str, Call] = {"panels": in_turn(Panels.matmul, *((p, x_TI) for p in panels))}
    if not alone:
        calls["torch"] = in_turn(F.linear, *((x_TI, w) for w in weights))
    if len(x_TI) == 1:
        calls["read"] = in_turn(
            _native.dense_read, *((p.panels.data_ptr(), p.nbytes) for p in panels)
        )
        speed = {name: panels[0].nbytes / s / 1e9 for name, s in medians(calls).items()}
        share = speed["panels"] / speed["read"]
        return (
            f"{share:4.0%} of "
            + ", ".join(f"{name} {s:6.1f}" for name, s in speed.items())
            + " GB/s"
        )
    if len(x_TI) >= 16 and not alone and len(weights) > 1:
        calls["panels, float32"] = in_turn(Panels.matmul, *((p, x_TI.float()) for p in panels))
        calls["torch, float32"] = partial(F.linear, x_TI.float(), weights[0].float())
    operations = 2 * len(x_TI) * out_features * in_features
    return (
        ", ".join(f"{name} {operations / s / 1e9:6.1f}" for name, s in medians(calls).items())
        + " GFLOP/s"
    )


def main() -> None:
    torch.set_grad_enabled(False)
    _native.set_threads(torch.get_num_threads())
    print(f"{_native.selected()}, {_native.threads()} threads")
    for shape in [a for a in sys.argv[1:] if "x" in a] or SHAPES:
        out_features, in_features = (int(n) for n in shape.split("x"))
        copies = max(1, _BEYOND_CACHES // (2 * out_features * in_features))
        weights = [torch.randn(out_features, in_features).to(torch.bfloat16) for _ in range(copies)]
        start = time.perf_counter()
        panels = [Panels.of(Dense(w)) for w in weights]
        repacked = copies * panels[0].nbytes / (time.perf_counter() - start) / 1e9
        print(f"{shape}: repacked at {repacked:.1f} GB/s")
        for rows in [int(a) for a in sys.argv[1:] if a.isdigit()] or ROWS:
            x_TI = torch.randn(rows, in_features).to(torch.bfloat16)
            print(
                f"{shape:>11} {rows:4} rows: {cell(weights, panels, x_TI, '--alone' in sys.argv)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
