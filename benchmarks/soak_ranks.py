"""Streams of an engine of several ranks, of which one is killed or stopped again and again.

    python benchmarks/soak_ranks.py [MODEL] [--seconds 600] [--kill-every 30] [--clients 6] [--stop]
                                    [--within SECONDS] [-- --tp 2]

What follows `--` goes to `inferno serve`: `--pp 2`, `--tp 2 --pp 2`. Each whole answer must be the
one that its prompt got alone; a stream that ends early must be the beginning of it, and must be
told why within a second of a death, and ten of a hang (`--stop`). No stream may be silent, and no
rank may be left at the end. Ends with status 1 if anything is not so. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx
from attrs import define, field
from soak import children, engines, serve
from soak_stores import words

SIZES = ("--max-num-seqs", "8", "--max-model-len", "512", "--dtype", "float32", "--threads", "1")
"""In float32, so that no answer depends on which requests share a step."""
PROMPTS, WORDS, TOKENS = 8, 40, 100
SILENT = 60.0
"""Seconds after which a stream counts as forgotten."""


@define(eq=False)
class Run:
    """What was seen so far."""

    url: str
    server: int
    seconds: float
    signal: int
    started: float = field(factory=time.monotonic)
    counts: Counter[str] = field(factory=Counter)
    faults: list[str] = field(factory=list)
    killed: float = 0.0
    told: list[float] = field(factory=list)
    """Seconds from a rank's end to the end of each stream that it interrupted."""
    away: list[float] = field(factory=list)
    """Seconds from a rank's end to the next whole answer."""
    reasons: Counter[str] = field(factory=Counter)

    @property
    def over(self) -> bool:
        return time.monotonic() - self.started > self.seconds

    async def go(self, answers: dict[str, str], clients: int, kill_every: float) -> None:
        limits = httpx.Limits(max_connections=clients)
        async with httpx.AsyncClient(timeout=SILENT, limits=limits) as client:
            talks = (self._client(client, i, answers) for i in range(clients))
            await asyncio.gather(self._kill(kill_every), *talks)

    async def _client(
        self, client: httpx.AsyncClient, number: int, answers: dict[str, str]
    ) -> None:
        draw, prompts = random.Random(number), [*answers]
        while not self.over:
            prompt = draw.choice(prompts)
            begun = time.monotonic()
            try:
                text, reason = await stream(client, self.url, prompt)
            except httpx.TimeoutException:
                self.faults.append(f"a stream was silent for {SILENT:g} s")
                continue
            now = time.monotonic()
            if reason is None:
                self.counts["answers"] += 1
                if text != answers[prompt]:
                    self.faults.append(f"wrong: {text!r} instead of {answers[prompt]!r}")
                if self.away and begun > self.killed > 0 and self.away[-1] < 0:
                    self.away[-1] = now - self.killed
                continue
            self.reasons[reason] += 1
            if not answers[prompt].startswith(text):
                self.faults.append(f"wrong: {text!r} does not begin {answers[prompt]!r}")
            if begun < self.killed:
                self.counts["interrupted"] += 1
                self.told.append(now - self.killed)
            else:
                self.counts["refused"] += 1
                await asyncio.sleep(0.1)

    async def _kill(self, every: float) -> None:
        draw = random.Random(0)
        while not self.over:
            answers = self.counts["answers"]
            while self.counts["answers"] == answers and not self.over:
                await asyncio.sleep(0.05)
            await asyncio.sleep(every)
            ranks = [rank for engine in engines(self.server) for rank in children(engine)]
            if not ranks or self.over:
                continue
            self.killed = time.monotonic()
            self.away.append(-1.0)
            os.kill(draw.choice(ranks), self.signal)
            self.counts["kills"] += 1


async def stream(client: httpx.AsyncClient, url: str, prompt: str) -> tuple[str, str | None]:
    """Return what came of an answer, and why it ended early: None if it is whole. Raises
    httpx.TimeoutException."""
    body = {
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    text = ""
    try:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as reply:
            if reply.status_code != 200:
                document = json.loads(await reply.aread())
                return text, str(document["error"]["message"]).partition("\n")[0]
            async for line in reply.aiter_lines():
                if line == "data: [DONE]":
                    return text, None
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        return text, str(event["error"]["message"]).partition("\n")[0]
                    text += event["choices"][0]["text"]
    except httpx.TimeoutException:
        raise
    except httpx.HTTPError as error:
        return text, f"the connection ended ({type(error).__name__})"
    return text, "the stream ended without a word"


async def known(url: str) -> dict[str, str]:
    """Ask each prompt alone."""
    draw, answers = random.Random(0), {}
    async with httpx.AsyncClient(timeout=300) as client:
        for _ in range(PROMPTS):
            prompt = words(draw, WORDS)
            answers[prompt], reason = await stream(client, url, prompt)
            if reason is not None:
                raise SystemExit(f"before any kill: {reason}")
    return answers


def told(name: str, seconds: Sequence[float]) -> str:
    known = sorted(each for each in seconds if each >= 0)
    if not known:
        return f"{name}: none"
    return f"{name}: median {statistics.median(known):.2f} s, longest {known[-1]:.2f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    at = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--kill-every", type=float, default=30, help="after an answer")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--stop", action="store_true", help="stop a rank instead of killing it")
    parser.add_argument("--within", type=float, help="seconds; 1, or 10 with --stop")
    options = parser.parse_args(given[:at])
    within = options.within or (10.0 if options.stop else 1.0)
    server, url, _ = serve(options.model, *SIZES, *(given[at + 1 :] or ["--tp", "2"]))
    ranks: list[int] = []
    try:
        answers = asyncio.run(known(url))
        sent = signal.SIGSTOP if options.stop else signal.SIGKILL
        run = Run(url, server.pid, options.seconds, sent)
        asyncio.run(run.go(answers, options.clients, options.kill_every))
        ranks = [rank for engine in engines(server.pid) for rank in children(engine)]
    finally:
        server.terminate()
        server.wait(60)
    counts, faults = run.counts, run.faults
    print(f"{counts['answers']} answers, {len(faults)} faults, {counts['kills']} kills")
    print(f"{counts['interrupted']} streams ended early, {counts['refused']} found no engine")
    print(told("a stream is told after", run.told))
    print(told("the next whole answer after", run.away))
    for reason, count in run.reasons.most_common(5):
        print(f"{count} x {reason}")
    if any(seconds > within for seconds in run.told):
        faults.append(f"a stream was told after {max(run.told):.1f} s")
    if not counts["kills"] or not counts["interrupted"]:
        faults.append("no stream was interrupted")
    deadline = time.monotonic() + 10
    while (
        alive := [r for r in ranks if Path(f"/proc/{r}").exists()]
    ) and time.monotonic() < deadline:
        time.sleep(0.1)
    faults += [f"{len(alive)} ranks are left"] if alive else []
    sys.exit("\n".join(faults[:5]) or None)


if __name__ == "__main__":
    main()
