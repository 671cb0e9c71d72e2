"""What ranks cost and give: decode steps of one process with all threads beside ranks with as
many in all, and steps as messages.

    python benchmarks/ranks.py [MODEL] [--ranks 2] [--rounds 5] [--sequences 4] [--tokens 64]

Both engines are loaded before the first round, and rounds take turns. On a machine that does other
work, compare the medians, not the single figures: two ranks wait for the slower one in every sum.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from inferno.core.engine import Engine
from inferno.core.types import NewSequence, Slice, Step
from inferno.host import usable_cores
from inferno.plan import Options, open_model
from inferno.process.ranks import messages
from inferno.process.ranks.engine import load_engine
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams


def load(ref: str, ranks: int, threads: int) -> Engine:
    options = Options(device="cpu", tp=ranks, threads=threads, max_model_len=1024)
    with open_model(ref, options) as opened:
        return load_engine(opened)


def decode(engine: Engine, sequences: int, tokens: int) -> float:
    """Return tokens per second of all sequences, their prompts not counted."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    for i in range(sequences):
        engine.submit(Request(id=str(i), token_ids=(i + 3, 5, 7), params=params))
    engine.step()
    begun, drawn = time.perf_counter(), 0
    while engine.busy:
        drawn += len(engine.step())
    return drawn / (time.perf_counter() - begun)


def microseconds(run: Callable[[], object], count: int = 200) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return median(times) * 1e6


def message_costs() -> dict[str, float]:
    """Return the time to encode and to decode a step of 256 sequences, and an admission of 8 000
    tokens."""
    step = Step(slices=tuple(Slice(row, 1000 + row, 1, True) for row in range(256)))
    drawn = [[50_000]] * 256
    prompt = tuple(range(60_000, 68_000))
    request = Request(id="1", token_ids=prompt, params=SamplingParams())
    admission = Step(slices=(), new_sequences=(NewSequence(0, request, prompt),))
    costs = dict[str, float]()
    for name, given in (("256 sequences", step), ("8 000 tokens", admission)):
        body = messages.encode_step(given, drawn)
        costs[f"encode {name}"] = microseconds(partial(messages.encode_step, given, drawn))
        costs[f"decode {name}"] = microseconds(partial(messages.decode_step, body))
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    for name, default in (("ranks", 2), ("rounds", 5), ("sequences", 4), ("tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given: Any = parser.parse_args()
    cores = usable_cores()
    alone = load(given.model, 1, cores)
    shared = load(given.model, given.ranks, max(1, cores // given.ranks))
    speeds: list[tuple[float, float]] = []
    for each in range(given.rounds + 1):
        pair = tuple(decode(e, given.sequences, given.tokens) for e in (alone, shared))
        if each:  # the first one captures steps
            speeds.append((pair[0], pair[1]))
    one, several = (median(column) for column in zip(*speeds, strict=True))
    ratio = median(b / a for a, b in speeds)
    ranks = f"{several:.0f} of {given.ranks} ranks"
    print(f"decode: {one:.0f} tokens/s of one process, {ranks}: {ratio:.2f}")
    for name, cost in message_costs().items():
        print(f"{name}: {cost:.0f} us")
    shared.close()
    alone.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
