"""Memory of a server under load for a long time: `inferno serve` and its engine process, with
clients that chat, stream, leave in the middle and send mistakes.

    python benchmarks/soak.py [--minutes 20] [--clients 64] [--ref demo]

Prints a line for each minute, then each process's slope after the warm-up, in megabytes of resident
memory per minute. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import string
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from attrs import define, field

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SAMPLE_SECONDS = 2.0


@define(eq=False)
class Soak:
    """What was seen so far."""

    host: str
    port: int
    pids: dict[str, int]
    seconds: float
    started: float = field(factory=perf_counter)
    statuses: Counter[int] = field(factory=Counter)
    left: int = 0
    """Streams whose client went away."""
    size: int = 0
    """Bytes of answers."""
    memory: list[tuple[float, dict[str, float]]] = field(factory=list)
    """Minutes since the start, and each process's megabytes."""

    @property
    def minutes(self) -> float:
        return (perf_counter() - self.started) / 60

    @property
    def over(self) -> bool:
        return perf_counter() - self.started > self.seconds

    async def run(self, clients: int) -> None:
        await asyncio.gather(self._watch(), *(self._client(i) for i in range(clients)))

    async def _watch(self) -> None:
        print(f"{'minute':>6}{'answers':>9}{'left':>7}{'MB sent':>9}", end="")
        print("".join(f"{name + ' MB':>12}" for name in self.pids), flush=True)
        told = 0
        while not self.over:
            sizes = {name: resident(pid) for name, pid in self.pids.items()}
            self.memory.append((self.minutes, sizes))
            if int(self.minutes) >= told:
                told += 1
                answers = sum(self.statuses.values())
                line = f"{told - 1:>6}{answers:>9}{self.left:>7}{self.size / 1e6:>9.0f}"
                print(line + "".join(f"{mb:>12.1f}" for mb in sizes.values()), flush=True)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _client(self, number: int) -> None:
        draw = random.Random(number)
        while not self.over:
            path, body, leaves = request(draw)
            await self._send(path, body, leaves)

    async def _send(self, path: str, body: bytes, leaves: int | None) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
            size = 0
            while chunk := await reader.read(65536):
                size += len(chunk)
                if leaves is not None and size > leaves:
                    self.left += 1
                    break
            self.statuses[status] += 1
            self.size += size
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def request(draw: random.Random) -> tuple[str, bytes, int | None]:
    """Return a path, a body, and the bytes after which the client leaves, or None."""
    text = "".join(draw.choices(string.ascii_letters + "     ", k=draw.randint(5, 1500)))
    messages = [{"role": "user", "content": text}]
    if draw.random() < 0.05:
        mistakes: list[Any] = [
            {"temperature": -1},
            {"model": text[:50]},
            {"messages": []},
            {"n": 0},
        ]
        body = {"messages": messages, **draw.choice(mistakes)}
        return CHAT, json.dumps(body).encode(), None
    options = {"max_tokens": draw.randint(1, 200), "temperature": draw.choice([0, 1])}
    stream = draw.random() < 0.7
    body = {**options, "stream": stream, "stop": ["\n\n\n"], "n": draw.choice([1, 1, 1, 2])}
    leaves = draw.randint(500, 20_000) if stream and draw.random() < 0.2 else None
    if draw.random() < 0.3:
        return TEXT, json.dumps({"prompt": text, "logprobs": 1, **body}).encode(), leaves
    return CHAT, json.dumps({"messages": messages, **body}).encode(), leaves


def resident(pid: int) -> float:
    """A process's resident memory in megabytes; 0 once it has ended."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024
    return 0.0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line nearest to the points."""
    xs, ys = zip(*points, strict=True)
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((a - x) ** 2 for a in xs)
    return sum((a - x) * (b - y) for a, b in points) / spread if spread else 0.0


def serve(*arguments: str) -> tuple[subprocess.Popen[str], str, int]:
    """Start the server. Returns it with its URL and its engine's process id."""
    server = subprocess.Popen(
        [sys.executable, "-m", "inferno", "serve", *arguments, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert server.stderr is not None, "it is a pipe"
    for line in server.stderr:
        if match := re.search(r"Serving at (http://\S+?)/v1", line):
            break
    else:
        raise SystemExit("the server did not start")
    threading.Thread(target=server.stderr.read, daemon=True).start()  # or a full pipe stops it
    return server, match[1], engines(server.pid)[0]


def children(pid: int) -> list[int]:
    """The processes that this one started, those that have ended excepted."""
    pids = []
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
                pids += [child] if state != "Z" else []
    return pids


def engines(server: int) -> list[int]:
    """Return a server's engine processes: none for a moment, after one has ended."""
    pids = []
    for pid in children(server):
        with contextlib.suppress(OSError):
            if "inferno.process" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                pids.append(pid)
    return pids


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--ref", default="demo")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--warm-up", type=float, help="Minutes; a quarter of the time by default")
    parser.add_argument("--clients", type=int, default=64)
    options = parser.parse_args(arguments)
    server, url, engine = serve(options.ref)
    try:
        host, port = url.removeprefix("http://").split(":")
        pids = {"server": server.pid, "engine": engine}
        soak = Soak(host, int(port), pids, options.minutes * 60)
        asyncio.run(soak.run(options.clients))
    finally:
        server.terminate()
        server.wait(60)
    warm_up = options.minutes / 4 if options.warm_up is None else options.warm_up
    print("statuses:", dict(sorted(soak.statuses.items())), f"left: {soak.left}")
    for name in pids:
        points = [(at, each[name]) for at, each in soak.memory if at >= warm_up]
        print(f"{name}: {slope(points):+.2f} MB/min after {warm_up:g} minutes")


if __name__ == "__main__":
    main()
