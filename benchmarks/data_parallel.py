"""What several engines give: tokens per second of `--dp` engines with a thread each, beside one
engine of as many threads in all, and beside one engine of one thread. With --ep, also of
engines that share a mixture's experts.

    python benchmarks/data_parallel.py [MODEL] [--engines 2 [--ep]] [--rounds 5] [--requests 64]
        [--seqs 16] [--prompt 64] [--tokens 128] [--dtype bfloat16]

MODEL may be one of `benchmarks/models.py`. Each engine runs up to `--seqs` of the requests at once.
With fewer requests than all have room for, several engines read the weights for fewer of them at a
time.

All are loaded before the first round, and rounds take turns. Ratios are of figures of one round.
Several engines need as many cores at once, and another one for this process, which hands out their
tokens: where something else runs, compare processor time. What engines take of it for a token says
what they would give on free cores. The first line is of engines alone: no process takes their
tokens.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from models import SHAPES, make
from ranks import Decoding

from inferno import LLM, SamplingParams
from inferno.host import cpu_name
from inferno.llm.engine import in_own_processes
from inferno.plan import Options, open_model


def load(given: Any, engines: int, threads: int, ep: bool = False) -> LLM:
    """Start engines in processes of their own: so is one, to be compared with."""
    options = Options(
        device="cpu",
        dtype=given.dtype,
        max_num_seqs=given.seqs,
        max_model_len=given.prompt + given.tokens,
        dp=engines,
        threads=threads,
        ep=ep,
    )
    with open_model(given.model, options) as opened:
        return LLM.of(*in_own_processes(opened, None))


class Round(NamedTuple):
    """What a turn took for a token, in microseconds."""

    time: float
    engines: float
    """Processor time of all engines."""
    here: float
    """That of this process."""


def run(llm: LLM, turn: int, requests: int, prompt: int, tokens: int) -> Round:
    """Answer requests, prompts included in the time. No prompt was seen before."""
    prompts = [
        [5 + (turn * 31 + i * 17 + j * j) % 90 for j in range(prompt)] for i in range(requests)
    ]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    begun = time.perf_counter(), used(llm), time.process_time()
    llm.generate(prompts, params)
    ended = time.perf_counter(), used(llm), time.process_time()
    each = [(b - a) * 1e6 / (requests * tokens) for a, b in zip(begun, ended, strict=True)]
    return Round(*each)


def used(llm: LLM) -> float:
    """Return the processor time of the engines so far, in seconds."""
    client: Any = llm._engine._client  # type: ignore[attr-defined]
    pids = [view.pid for view in client.engines] or [client.pid]
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in stats) / os.sysconf("SC_CLK_TCK")


def by_themselves(given: Any) -> list[float]:
    """Return, sorted, each round's ratio of all engines' tokens to those of one alone, where
    no process takes them: each engine has a process with one thread."""
    given = argparse.Namespace(**vars(given), sequences=given.seqs, isq=None, device="cpu")
    engines, ratios = [Decoding(given, 1, 1) for _ in range(given.engines)], list[float]()

    def speed(pool: ThreadPoolExecutor, some: list[Decoding], turn: int) -> float:
        costs = pool.map(partial(Decoding.costs, given=given, turn=turn), some)
        return sum(each.speed for each in costs)

    with ThreadPoolExecutor(given.engines) as pool:
        for turn in range(given.rounds + 1):
            one = speed(pool, engines[:1], 2 * turn)
            ratios.append(speed(pool, engines, 2 * turn + 1) / one)
    for engine in engines:
        engine.close()
    return sorted(ratios[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    for name, default in (("engines", 2), ("rounds", 5), ("requests", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("seqs", 16), ("prompt", 64), ("tokens", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--ep", action="store_true")
    given: Any = parser.parse_args()
    if given.model in SHAPES:
        given.model = str(make(given.model, Path(".work")))
    count, size = given.engines, (given.requests, given.prompt, given.tokens)
    alone = by_themselves(given)
    print(
        f"{count} engines whose tokens no process takes: {median(alone):.2f} x one "
        f"({alone[0]:.2f}-{alone[-1]:.2f})",
        flush=True,
    )
    kinds: dict[str, tuple[Any, ...]] = {
        "one engine, one thread": (1, 1),
        f"one engine, {count} threads": (1, count),
        f"{count} engines, one thread each": (count, 1),
    }
    if given.ep:
        kinds[f"{count} engines that share experts"] = (count, 1, True)
    llms = [load(given, *kind) for kind in kinds.values()]
    rounds = [[run(llm, turn, *size) for llm in llms] for turn in range(given.rounds + 1)]
    del rounds[0]  # it captures steps
    where = f"{cpu_name()}, load {os.getloadavg()[0]:.1f}"
    print(f"{given.model} on {where}: {given.requests} requests, {given.seqs} at once in an engine")
    for i, name in enumerate(kinds):
        mid = Round(*(median(column) for column in zip(*(e[i] for e in rounds), strict=True)))
        print(
            f"{name}: {1e6 / mid.time:.0f} tokens/s; a token takes {mid.engines:.0f} us of "
            f"engines, {mid.here:.0f} of this process"
        )
    for last, what in [*enumerate(kinds)][2:]:
        for i, name in [*enumerate(kinds)][:last]:
            ratios = sorted(each[i].time / each[last].time for each in rounds)
            print(f"{what}: {median(ratios):.2f} x {name} ({ratios[0]:.2f}-{ratios[-1]:.2f})")
        free = median(count * each[0].engines / each[last].engines for each in rounds)
        print(f"{what} on free cores, by processor time: {free:.2f} x one engine, one thread")
    for llm in llms:
        llm.close()


if __name__ == "__main__":
    main()
