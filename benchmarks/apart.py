"""What running streams feel of a long prompt: one engine beside two, of which one computes prompts
for the other.

    python benchmarks/apart.py MODEL [--prompt 8000] [--streams 4] [--rounds 3]

In each round the ways take turns: streams run, a prompt comes, and the gaps between the streams'
tokens are taken from then until its first token. Then the same streams run without the prompt, and
the gaps before the same tokens are taken: a step takes longer the longer its sequences are, which
for a small model is as much as what a prompt beside it costs. Both ways have the same cores: one
engine has two threads, the two have one each. The answers to the prompt must be equal. On a machine
that has other work, look at the ratio to the gaps without the prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
from bisect import bisect
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from attrs import define, field

from inferno import AsyncLLM, SamplingParams

ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
ANSWER = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
WARM_TOKENS = 16


@define
class Seen:
    """One way's figures of all rounds."""

    without: list[float] = field(factory=list)
    """Gaps before the same tokens without the prompt, in seconds."""
    during: list[float] = field(factory=list)
    first: list[float] = field(factory=list)
    """Seconds to the prompt's first token."""
    cached: int = 0
    answer: tuple[int, ...] = ()


async def stream(llm: AsyncLLM, prompt: Sequence[int], times: list[float]) -> None:
    async for deltas in llm.stream({"prompt_token_ids": list(prompt)}, ENDLESS):
        times += [perf_counter()] * sum(len(delta.token_ids) for delta in deltas)


@asynccontextmanager
async def running(llm: AsyncLLM, streams: int) -> AsyncIterator[list[list[float]]]:
    """Run streams, and give the times of each one's tokens: they all have some by then."""
    times: list[list[float]] = [[] for _ in range(streams)]
    starts = [[random.Random(i).randrange(1000) for _ in range(20)] for i in range(streams)]
    tasks = [
        asyncio.create_task(stream(llm, start, into))
        for start, into in zip(starts, times, strict=True)
    ]
    await until(times, [WARM_TOKENS] * streams)
    yield times
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(times: Sequence[Sequence[float]], counts: Sequence[int]) -> None:
    """Wait until each stream has its count of tokens."""
    while any(len(each) < count for each, count in zip(times, counts, strict=True)):
        await asyncio.sleep(0.01)


async def measure(llm: AsyncLLM, prompt: Sequence[int], streams: int, seen: Seen) -> None:
    async with running(llm, streams) as times:
        await asyncio.sleep(2)
        came, first, answer = perf_counter(), 0.0, list[int]()
        async for deltas in llm.stream({"prompt_token_ids": list(prompt)}, ANSWER):
            first = first or perf_counter()
            answer += [token for delta in deltas for token in delta.token_ids]
            seen.cached = max([seen.cached, *(delta.num_remote for delta in deltas)])
    spans = [(bisect(each, came), bisect(each, first)) for each in times]
    async with running(llm, streams) as without:
        await until(without, [stop for _, stop in spans])
    for (start, stop), with_it, without_it in zip(spans, times, without, strict=True):
        seen.during += gaps(with_it[start - 1 : stop])
        seen.without += gaps(without_it[start - 1 : stop])
    seen.first.append(first - came)
    seen.answer += tuple(answer)


def gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


async def run(args: argparse.Namespace) -> None:
    url = f"shm://bench-{secrets.token_hex(4)}"
    given: dict[str, Any] = {"max_num_seqs": 8, "memory": args.memory, "seed": 0}
    given |= {"max_num_batched_tokens": args.chunk}
    seen = {"one engine": Seen(), "apart": Seen()}
    draw = random.Random(1)
    for _ in range(args.rounds):
        prompt = [draw.randrange(1000) for _ in range(args.prompt)]
        async with AsyncExitStack() as stack:
            one = AsyncLLM(args.model, threads=2, **given)
            await measure(
                await stack.enter_async_context(one), prompt, args.streams, seen["one engine"]
            )
        async with AsyncExitStack() as stack:
            there = AsyncLLM(args.model, threads=1, prefill_for=url, **given)
            others = children()
            await stack.enter_async_context(there)
            for pid in children() - others:
                yield_to_others(pid, args.nice)
            here = AsyncLLM(args.model, threads=1, decode_with=url, **given)
            await stack.enter_async_context(here)
            await asyncio.sleep(3)  # until they know each other
            await measure(here, prompt, args.streams, seen["apart"])
    report(args, seen)


def children() -> set[int]:
    """Return the processes that this one has started."""
    pids = set[int]()
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if f"PPid:\t{os.getpid()}\n" in status.read_text():
                pids.add(int(status.parent.name))
    return pids


def yield_to_others(pid: int, niceness: int) -> None:
    """Give every thread of a process a lower priority, as `nice` would have at its start."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), niceness)


def report(args: argparse.Namespace, seen: dict[str, Seen]) -> None:
    print(f"{args.streams} streams, a prompt of {args.prompt} tokens, {args.rounds} rounds")
    gap = "median gap without it, ms | p95 | during | p95 | p95 during / without"
    print(f"| | {gap} | first token, s | remote tokens |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, each in seen.items():
        without, during = (np.array(g) * 1000 for g in (each.without, each.during))
        quantiles = [np.percentile(g, q) for g in (without, during) for q in (50, 95)]
        figures = " | ".join(f"{value:.1f}" for value in quantiles)
        ratio, first = quantiles[3] / quantiles[1], np.median(each.first)
        print(f"| {name} | {figures} | {ratio:.2f} | {first:.2f} | {each.cached} |")
    equal = seen["one engine"].answer == seen["apart"].answer
    print("the answers are equal" if equal else "THE ANSWERS DIFFER")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=8000)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=512, help="Most tokens of a step.")
    parser.add_argument("--nice", type=int, default=0, help="Niceness of the prefill engine.")
    parser.add_argument("--memory", default="2GiB", help="Of each engine.")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
