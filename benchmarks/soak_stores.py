"""Conversations with a store of blocks on disk, while its engine process is killed again and again.

    python benchmarks/soak_stores.py [MODEL] [--seconds 180] [--kill-every 10] [--clients 3]
        [--apart]

With `--apart`, another server computes its prompts, and their engine processes are killed by turns.
Each answer must be the one of a server without a store. In the end the folder must be within its
limit, and have nothing of the other layout that was there at the start, no half of a file and no
damaged one; the server's memory and descriptors must not have grown, nor those of its engine
processes from one to the next. Ends with status 1 if anything is not so. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from attrs import define, field, frozen
from soak import engines, resident, serve

from inferno_offload.folder import Folder
from inferno_offload.parts import Read
from inferno_offload.slots import Buffer

LIMIT = 12 << 20
SIZES = ("--max-num-seqs", "4", "--max-model-len", "1024", "--dtype", "float32")
"""In float32, so that no answer depends on which requests share a step."""
MOST = LIMIT * 5 // 4
"""Files are written before others are removed for them."""
FOREIGN, FULL = "blocks-0000000000000000", LIMIT // 2 + 1
NUM_CONVERSATIONS, TURNS, WORDS, TOKENS = 8, 6, 60, 16
GROWTH = {"server": 8.0, "engine": 32.0}
"""Megabytes that later samples may be larger, on average. Engines are new processes, which have
touched more or less of their cache and buffers when they are killed: few of them tell nothing."""
FEW = 8
MORE_FILES = 16
"""Descriptors: those of the clients come and go."""


@frozen
class Turn:
    prompt: str
    answer: str


@frozen
class Sample:
    megabytes: float
    descriptors: int


@define(eq=False)
class Run:
    """What was seen so far."""

    url: str
    server: int
    folder: Path
    seconds: float
    prefilling: int | None = None
    """The process of the server that computes prompts for it."""
    started: float = field(factory=perf_counter)
    counts: Counter[str] = field(factory=Counter)
    wrong: list[str] = field(factory=list)
    largest: int = 0
    """Bytes of the folder's files."""
    servers: list[Sample] = field(factory=list)
    ended: list[Sample] = field(factory=list)
    """Engine processes, just before they were killed."""

    @property
    def over(self) -> bool:
        return perf_counter() - self.started > self.seconds

    async def go(self, conversations: list[list[Turn]], clients: int, kill_every: float) -> None:
        talks = (self._client(i, conversations) for i in range(clients))
        await asyncio.gather(self._watch(), self._kill(kill_every), *talks)
        # The last engine that was killed may have left half of a file, and no room.
        for turn in conversations[0]:
            while not await self._said(turn):
                await asyncio.sleep(0.2)

    async def _client(self, number: int, conversations: list[list[Turn]]) -> None:
        draw = random.Random(number)
        while not self.over:
            for turn in draw.choice(conversations):
                while not self.over and not await self._said(turn):
                    await asyncio.sleep(0.2)

    async def _said(self, turn: Turn) -> bool:
        """Ask once. Returns False if the engine was killed meanwhile."""
        try:
            answer, details = await asyncio.to_thread(ask, self.url, turn.prompt)
        except OSError as error:
            status = getattr(error, "code", None)
            if status is not None and status < 500:
                raise
            self.counts["failed"] += 1
            return False
        self.counts["answers"] += 1
        for tier, tokens in details.items():
            self.counts[tier] += tokens
        if answer != turn.answer:
            self.wrong.append(f"{answer!r} instead of {turn.answer!r}")
        return True

    async def _watch(self) -> None:
        while not self.over:
            self.servers.append(sample(self.server))
            self.largest = max(self.largest, sum(sizes(self.folder).values()))
            await asyncio.sleep(0.5)

    async def _kill(self, every: float) -> None:
        """Kill each engine so long after its first answer, at whatever it does then: those of both
        servers by turns."""
        turns = cycle([self.server, *([] if self.prefilling is None else [self.prefilling])])
        while not self.over:
            answers = self.counts["answers"]
            while self.counts["answers"] == answers and not self.over:
                await asyncio.sleep(0.05)
            await asyncio.sleep(every)
            for pid in engines(server := next(turns)):
                if server == self.server:
                    self.ended.append(sample(pid))
                os.kill(pid, signal.SIGKILL)
                self.counts["kills"] += 1


def ask(url: str, prompt: str) -> tuple[str, dict[str, int]]:
    """Return the answer, and the tokens of the prompt that each tier had. Raises OSError."""
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    head = {"Content-Type": "application/json"}
    post = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(post, timeout=60) as reply:
            document: dict[str, Any] = json.load(reply)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    details = document["usage"].get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens_details") or {"memory": details.get("cached_tokens") or 0}
    return document["choices"][0]["text"], cached


def known(url: str) -> list[list[Turn]]:
    """Have conversations with a server without a store. They share their beginnings."""
    draw, conversations = random.Random(0), []
    system = words(draw, WORDS)
    for _ in range(NUM_CONVERSATIONS):
        history, turns = system, list[Turn]()
        for _ in range(TURNS):
            history += words(draw, WORDS)
            answer, _cached = ask(url, history)
            turns.append(Turn(history, answer))
            history += answer
        conversations.append(turns)
    return conversations


def words(draw: random.Random, count: int) -> str:
    some = "a the dog cat boat river said went little big red blue home friend tree and to".split()
    return "".join(f" {draw.choice(some)}" for _ in range(count))


def sample(pid: int) -> Sample:
    """A process as it is now; zeros once it has ended."""
    with contextlib.suppress(OSError):
        return Sample(resident(pid), len(os.listdir(f"/proc/{pid}/fd")))
    return Sample(0.0, 0)


def sizes(folder: Path) -> dict[Path, int]:
    """The files of blocks: what describes the folder is not counted."""
    by_path = {}
    for path in folder.glob("blocks-*/*/*"):
        with contextlib.suppress(OSError):
            by_path[path] = path.stat().st_size
    return by_path


def plant(folder: Path) -> None:
    """Leave another layout's blocks, more than may stay."""
    path = folder / FOREIGN / "00"
    path.mkdir(parents=True)
    (path.parent / "layout.json").write_text('{"dtype": "another"}')
    (path / f"{bytes(16).hex()}.0").write_bytes(bytes(FULL))


def faults(run: Run) -> list[str]:
    """What is not as it must be, after the server has ended."""
    problems = [f"wrong: {each}" for each in run.wrong[:3]]
    problems += left(run.folder)
    if run.largest > MOST:
        problems.append("the folder was larger than its limit and what is on its way")
    early = run.servers[len(run.servers) // 4 : len(run.servers) // 2]
    late = run.servers[-len(run.servers) // 4 :]
    half = len(run.ended) // 2
    ended = run.ended[:half], run.ended[half:]
    for name, before, after in (("server", early, late), ("engine", *ended)):
        if before and after:
            growth = mean(after) - mean(before)
            files = max(s.descriptors for s in after) - max(s.descriptors for s in before)
            print(f"{name}: {mean(after):.0f} MB, {growth:+.1f}; {files:+d} descriptors")
            grows = growth > GROWTH[name] and (name == "server" or len(run.ended) >= FEW)
            if grows or files > MORE_FILES:
                problems.append(f"the {name} grows")
    return problems


def left(folder: Path) -> list[str]:
    """What the folder has and should not."""
    layouts = list(folder.glob("blocks-*"))
    if len(layouts) != 1:
        return [f"{len(layouts)} layouts are left"]
    layout = (layouts[0] / "layout.json").read_text()
    parts = tuple(group["bytes"] for group in json.loads(layout)["groups"])
    files = sizes(folder)
    problems = [f"{path} is incomplete" for path in files if path.suffix == ".draft"]
    opened = Folder.open(folder, layout, parts, LIMIT)
    try:
        reads = [
            Read(part, place, Buffer(torch.empty(parts[part[1]], dtype=torch.uint8)))
            for part, place in opened.places.items()
        ]
        whole = [good for each in opened.parts.read(opened.parts.together(reads)) for good in each]
    finally:
        opened.close()
    print(f"folder: {len(whole)} parts, {sum(files.values()) / 2**20:.1f} MiB of {LIMIT >> 20}")
    problems += [f"{whole.count(False)} parts are damaged"] if not all(whole) else []
    problems += ["nothing was stored"] if not whole else []
    return problems + (["more is left than the limit"] if sum(files.values()) > LIMIT else [])


def mean(samples: Sequence[Sample]) -> float:
    return sum(each.megabytes for each in samples) / len(samples)


def end(server: subprocess.Popen[str]) -> None:
    server.terminate()
    server.wait(60)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--kill-every", type=float, default=10, help="after its first answer")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--apart", action="store_true", help="Another server computes prompts.")
    options = parser.parse_args(arguments)
    server, url, _ = serve(options.model, *SIZES)
    try:
        conversations = known(url)
    finally:
        end(server)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plant(folder)
        stored = ["--kv-store", name, "--kv-store-size", str(LIMIT)]
        link, prefilling = f"shm://soak-{secrets.token_hex(4)}", None
        with contextlib.ExitStack() as servers:
            if options.apart:
                other, _, _ = serve(options.model, *SIZES, "--prefill-for", link)
                servers.callback(end, other)
                prefilling = other.pid
                stored += ["--decode-with", link, "--pd-min-uncached", "64"]
            server, url, _ = serve(options.model, *SIZES, *stored)
            servers.callback(end, server)
            run = Run(url, server.pid, folder, options.seconds, prefilling)
            asyncio.run(run.go(conversations, options.clients, options.kill_every))
        counts = run.counts
        print(
            f"{counts['answers']} answers, {len(run.wrong)} of them wrong, {counts['kills']} kills,"
        )
        print(f"{counts['kills']} kills; {counts['failed']} requests ended, or found no engine")
        found = ", ".join(f"{counts[tier]} {tier}" for tier in ("memory", "disk", "remote"))
        print(f"tokens found: {found}")
        print(f"largest folder: {run.largest / 2**20:.1f} MiB")
        problems = faults(run)
    problems += ["nothing came from disk"] if not counts["disk"] else []
    problems += ["the engine was never killed"] if not counts["kills"] else []
    problems += ["no prompt came"] if options.apart and not counts["remote"] else []
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
