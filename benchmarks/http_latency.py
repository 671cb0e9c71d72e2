"""What HTTP and the engine process add to a token: the server's processor time, and the delay from
the moment an engine draws it to the moment a client has read it, through a server, and through
`AsyncLLM` in one process.

    python benchmarks/http_latency.py [--streams 64] [--tokens 100] [--pace 10] [--rounds 5]

No model runs: an engine of a few lines draws a token for each stream every `--pace` milliseconds.
The two ways take turns. The tokens of all streams are drawn at the same moment and pass one after
another, so the delay is about half of their processor time together. Linux only: its processes
share a clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any, cast

import zmq
from http_cost import PLAN, TOKENIZER

from inferno.llm import AsyncLLM
from inferno.llm.preprocessor import Preprocessor
from inferno.process import protocol
from inferno.process.client import EngineClient, TokenStream
from inferno.process.connection import Connection
from inferno.process.worker import Worker
from inferno.request.requests import EngineOutput, EngineStats, FinishReason, Request
from inferno.request.sampling_params import SamplingParams
from inferno.server import run_server

WORST = 0.99


class Paced:
    """An engine that draws "a" for each request at every tick, and remembers when."""

    waits_for = listens = None

    def __init__(self, pace: float) -> None:
        self.drawn: dict[str, list[float]] = {}
        self._pace, self._next = pace, 0.0
        self._running: dict[str, Request] = {}
        self._token_id = TOKENIZER.encode("a")[0]
        self._steps = 0

    def submit(self, request: Request, *, wait: bool = True) -> None:
        self._running[request.id] = request
        self.drawn[request.id] = []

    def abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def stats(self) -> EngineStats:
        return EngineStats(steps=self._steps)

    @property
    def wait(self) -> float:
        """Seconds to the next tick."""
        return max(0.0, self._next - perf_counter())

    def step(self, *, naps: bool = True) -> list[EngineOutput]:
        sleep(self.wait)
        self._next, self._steps = perf_counter() + self._pace, self._steps + 1
        return [self._draw(request) for request in list(self._running.values())]

    def _draw(self, request: Request) -> EngineOutput:
        times = self.drawn[request.id]
        times.append(perf_counter())
        last = len(times) == request.params.max_tokens
        if last:
            del self._running[request.id]
        return EngineOutput(request.id, self._token_id, FinishReason.LENGTH if last else None)


class Link:
    """Starts the paced engine in another process, where a server has a supervisor."""

    def __init__(self, on_message: Any, pace: float, times: str) -> None:
        self.plan = PLAN
        self.alive, self.running, self.stalled, self.pid = True, True, False, None
        self._on_message, self._pace, self._times = on_message, pace, times

    async def start(self) -> None:
        endpoint = f"ipc://{tempfile.mkdtemp()}/engine"
        ready = asyncio.Event()

        def take(kind: bytes, body: bytes) -> None:
            ready.set()
            self._on_message(kind, body)

        self._connection = Connection.bind(zmq.Context(), endpoint, take)
        command = [sys.executable, __file__, "--engine", endpoint, "--times", self._times]
        self._process = subprocess.Popen([*command, "--pace", str(self._pace * 1000)])
        await ready.wait()  # what is sent before is lost

    async def close(self, *, patient: bool = False) -> None:
        self.send(protocol.STOP, b"")
        self._process.wait(10)

    def send(self, kind: bytes, body: bytes) -> None:
        self._connection.send(kind, body)


def serve(pace: float, times: str) -> None:
    """The server's process. Prints its URL."""
    client = EngineClient(PLAN)
    client._engine = Link(client._take, pace, times)  # type: ignore[assignment]
    text = Preprocessor(tokenizer=TOKENIZER, max_model_len=100_000, vocab_size=256)
    run_server(AsyncLLM.of(client, text), port=0, ready=lambda url, _: print(url, flush=True))


def engine(endpoint: str, pace: float, times: str) -> None:
    """The engine's process. Writes when it drew each token once it is told to stop."""
    socket = zmq.Context().socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.connect(endpoint)
    heart: Any = SimpleNamespace(moved=lambda: None)
    worker, paced = Worker(socket, os.getppid(), heart), Paced(pace)
    worker._engine = paced  # type: ignore[assignment]
    worker._send(protocol.STATS, protocol.encode(paced.stats()))
    while worker._serve():
        pass
    Path(times).write_text(json.dumps(paced.drawn))


class Reader(asyncio.Protocol):
    """A client that notes when each token of its stream comes, and does little else: it shares the
    server's cores."""

    def __init__(self, request: bytes) -> None:
        self.id = ""
        self.times: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._rest = request, b""

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        events, mark, rest = (self._rest + data).rpartition(b"\n\n")
        self._rest = rest if mark else events + rest
        if not self.id and (match := re.search(rb'"id":"cmpl-(\w+)"', events)):
            self.id = match[1].decode() + "-0"
        self.times += [now] * sum(map(len, re.findall(rb'"text":"(a+)"', events)))

    def connection_lost(self, error: Exception | None) -> None:
        self.done.set_result(None)


async def through_server(url: str, streams: int, tokens: int) -> dict[str, list[float]]:
    """When each token of each stream was read."""
    host, port = url.removeprefix("http://").split(":")
    fields = {"prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    request, loop = head.encode() + body, asyncio.get_running_loop()

    async def one() -> Reader:
        _, reader = await loop.create_connection(lambda: Reader(request), host, int(port))
        await reader.done
        return reader

    readers = await asyncio.gather(*(one() for _ in range(streams)))
    return {reader.id: reader.times for reader in readers}


class Local:
    """An engine client without a process."""

    def __init__(self, pace: float) -> None:
        self.plan = PLAN
        self.alive, self.stalled, self.asleep, self.weight_version = True, False, False, "0"
        self.stats, self.engine = EngineStats(), Paced(pace)
        self._streams: dict[str, TokenStream] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def submit(self, request: Request, *news: Any) -> TokenStream:
        stream = self._streams[request.id] = TokenStream(request.id, *news)
        self.engine.submit(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return stream

    async def check(self, spec: Any) -> None: ...

    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)

    async def _run(self) -> None:
        while self.engine.busy:
            await asyncio.sleep(self.engine.wait)
            for token in self.engine.step():
                self._streams[token.request_id].feed(token)


async def in_process(pace: float, streams: int, tokens: int) -> list[float]:
    """Seconds from draw to reader of every token."""
    client = Local(pace)
    text = Preprocessor(tokenizer=TOKENIZER, max_model_len=100_000, vocab_size=256)
    llm = AsyncLLM.of(cast(Any, client), text)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    read: dict[str, list[float]] = {}

    async def one(name: str) -> None:
        async for deltas in llm.stream("a", params, request_id=name):
            now = perf_counter()
            read.setdefault(name, []).extend([now] * sum(len(d.token_ids) for d in deltas))

    await asyncio.gather(*(one(f"s{i}") for i in range(streams)))
    return delays(client.engine.drawn, read)


def delays(drawn: dict[str, list[float]], read: dict[str, list[float]]) -> list[float]:
    seconds = []
    for name, times in read.items():
        assert len(times) == len(drawn[name]), f"{len(times)} tokens instead of {len(drawn[name])}"
        seconds += [b - a for a, b in zip(drawn[name], times, strict=True)]
    return seconds


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_round(pace: float, streams: int, tokens: int) -> tuple[list[float], float]:
    """Seconds from draw to client of every token, through a new server, and the server's seconds of
    processor time for each."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        command = [sys.executable, __file__, "--serve", "--times", str(times)]
        server = subprocess.Popen(
            [*command, "--pace", str(pace * 1000)], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None, "it is a pipe"
        url = server.stdout.readline().strip()
        asyncio.run(through_server(url, streams, 20))  # warms up
        before = processor_seconds(server.pid)
        read = asyncio.run(through_server(url, streams, tokens))
        used = processor_seconds(server.pid) - before
        server.terminate()
        server.wait(20)
        drawn = json.loads(times.read_text())
    return delays(drawn, read), used / (streams * tokens)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--pace", type=float, default=10, help="Milliseconds between tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--times", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    pace = options.pace / 1000
    if options.engine:
        return engine(options.engine, pace, options.times)
    if options.serve:
        return serve(pace, options.times)
    ways: dict[str, list[list[float]]] = {"server": [], "in process": []}
    used = []
    for _ in range(options.rounds):
        seconds, each = one_round(pace, options.streams, options.tokens)
        ways["server"].append(seconds)
        used.append(each * 1000)
        ways["in process"].append(asyncio.run(in_process(pace, options.streams, options.tokens)))
    print(f"{'ms from draw to reader':<24}{'median':>8}{'99 %':>8}")
    medians = {}
    for name, rounds in ways.items():
        medians[name] = statistics.median(statistics.median(each) for each in rounds) * 1000
        worst = statistics.median(sorted(each)[int(WORST * len(each))] for each in rounds) * 1000
        print(f"{name:<24}{medians[name]:>8.3f}{worst:>8.3f}")
    print(f"{'added':<24}{medians['server'] - medians['in process']:>8.3f}")
    print(f"the server's processor time: {statistics.median(used):.3f} ms a token")


if __name__ == "__main__":
    main()
