"""Compare instruction sets on one decoder layer: `python benchmarks/instruction_sets.py
[--levels avx2 avx512vnni ...] [--formats bf16 q8_0 q4_k] [--rounds 9] [--threads 1]`.

The layer has the sizes of Qwen3-0.6B. *prompt* multiplies its four matrices by 512 tokens, *decode*
by one token, over copies that exceed the caches; *attention* is its attention for a prompt of 512
tokens, and for one token after 512. Every round runs all instruction sets in turn, each round
beginning with another one, so that a busy machine slows them alike. Printed are the medians over
the rounds of the time, and of the ratio to the first instruction set within a round. With one
thread the time is CPU time, which leaves out the time that other programs take.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from attention import run as attention_step
from packed import random_matrix

from inferno.contracts import AttentionNeed, Device
from inferno.nn import Dense
from inferno_cpu import _native, attend, attention
from inferno_cpu.dense import Panels
from inferno_cpu.layouts import LAYOUTS
from inferno_cpu.packed import PackedPanels, pack

MATRICES = [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)]
"""(output features, input features) of q, k and v; o; gate and up; down."""
PROMPT = 512
BEYOND_CACHES = 192 << 20
"""Bytes of weights for a decode step."""

Step = Callable[[], object]


def matrix(name: str, rows: int, columns: int) -> Panels | PackedPanels:
    if name == "bf16":
        return Panels.of(Dense(torch.randn(rows, columns).to(torch.bfloat16)))
    panels = pack(name, (rows, columns), *random_matrix(name, rows, columns), dtype=torch.bfloat16)
    return PackedPanels(name, (rows, columns), torch.bfloat16, panels)


def products(name: str, tokens: int) -> Step:
    """Return a step that multiplies the matrices of a layer, or for one token of enough layers to
    exceed the caches, by `tokens` tokens."""
    layer = [matrix(name, *shape) for shape in MATRICES]
    layers = 1 if tokens > 1 else 1 + BEYOND_CACHES // sum(weight.nbytes for weight in layer)
    weights = [*layer, *(matrix(name, *shape) for _ in range(layers - 1) for shape in MATRICES)]
    inputs = {columns: torch.randn(tokens, columns).to(torch.bfloat16) for _, columns in MATRICES}

    def step() -> None:
        for weight in weights:
            weight.matmul(inputs[weight.shape[1]])

    return step


def attentions() -> Iterator[tuple[str, Step]]:
    need = AttentionNeed(
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        scale=128**-0.5,
        dtype="bfloat16",
        device=Device("cpu"),
    )
    build = attend.build(need)
    layers = BEYOND_CACHES // (PROMPT * need.num_kv_heads * need.head_dim * 4)
    for name, counts, copies in [("prompt", [PROMPT], 1), ("decode", [1], layers)]:
        yield (
            f"attention, {name}",
            attention_step(need, build, attention.cache, counts, [PROMPT], copies),
        )


def compare(step: Step, levels: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each level in each round."""
    clock = time.thread_time if _native.threads() == 1 else time.perf_counter
    taken: dict[str, list[float]] = {level: [] for level in levels}
    for i in range(-1, rounds):  # the first round is discarded
        turn = i % len(levels)
        for level in (*levels[turn:], *levels[:turn]):
            _native.select(level)
            begin = clock()
            step()
            if i >= 0:
                taken[level].append(clock() - begin)
    return taken


def report(name: str, taken: dict[str, list[float]]) -> None:
    first = next(iter(taken.values()))
    cells = []
    for level, seconds in taken.items():
        ratio = statistics.median(a / b for a, b in zip(first, seconds, strict=True))
        cells.append(f"{level} {statistics.median(seconds) * 1e3:8.2f} ms x{ratio:.2f}")
    print(f"{name:18}", " | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    available = _native.available()
    levels = [name for name in reversed(available) if name != "portable"] or available
    parser.add_argument("--levels", nargs="+", default=levels, choices=available)
    parser.add_argument(
        "--formats", nargs="+", default=["bf16", "q8_0", "q4_k"], choices=["bf16", *LAYOUTS]
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    _native.set_threads(arguments.threads)
    print(f"{_native.threads()} threads; ratios to {arguments.levels[0]}")
    for name in arguments.formats:
        for phase, tokens in (("prompt", PROMPT), ("decode", 1)):
            taken = compare(products(name, tokens), arguments.levels, arguments.rounds)
            report(f"{name}, {phase}", taken)
    for name, step in attentions():
        report(name, compare(step, arguments.levels, arguments.rounds))


if __name__ == "__main__":
    main()
