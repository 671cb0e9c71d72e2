"""Streaming clients of an OpenAI-compatible server, as light as can be: the server shares their
cores."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import string
import urllib.request
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

from attrs import frozen

PROMPT_TOKENS = 128
NEW_TOKENS = 64


@frozen
class Stream:
    """One answer as its client saw it; times in seconds."""

    start: float
    arrivals: list[float]
    tokens: int


@frozen
class Served:
    """Many answers together."""

    ttft: float
    """Median seconds from sending a request to its first text."""
    itl: float
    """Median seconds between text chunks."""
    itl_99: float
    tokens_per_second: float
    """Of all clients together."""


def load(url: str, clients: int, requests_each: int, round_: int) -> Served:
    """`clients` at once, each sending its requests one after another."""
    return asyncio.run(_load(url, clients, requests_each, round_))


async def _load(url: str, clients: int, requests_each: int, round_: int) -> Served:
    host, port = url.removeprefix("http://").split(":")
    model = model_of(url)

    async def client(number: int) -> list[Stream]:
        draw = random.Random(f"{clients} {number} {round_}")
        return [await _ask(host, int(port), model, _text(draw)) for _ in range(requests_each)]

    start = perf_counter()
    streams = [s for one in await asyncio.gather(*map(client, range(clients))) for s in one]
    seconds = perf_counter() - start
    gaps = sorted(b - a for s in streams for a, b in zip(s.arrivals, s.arrivals[1:], strict=False))
    return Served(
        statistics.median(s.arrivals[0] - s.start for s in streams),
        statistics.median(gaps),
        gaps[int(0.99 * len(gaps))],
        sum(s.tokens for s in streams) / seconds,
    )


def model_of(url: str) -> str:
    """The name of the model served. Raises OSError while the server is not up."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
        return str(json.load(answer)["data"][0]["id"])


def _text(draw: random.Random) -> str:
    """The model's tokenizer makes one token of each letter."""
    return "".join(draw.choices(string.ascii_lowercase, k=PROMPT_TOKENS))


async def _ask(host: str, port: int, model: str, prompt: str) -> Stream:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start, arrivals, tokens = perf_counter(), [], 0
    async for event in _events(host, port, json.dumps(body).encode()):
        now = perf_counter()
        if event.get("choices") and event["choices"][0].get("text"):
            arrivals.append(now)
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    assert tokens == NEW_TOKENS, f"{tokens} tokens instead of {NEW_TOKENS}"
    return Stream(start, arrivals, tokens)


async def _events(host: str, port: int, body: bytes) -> AsyncIterator[dict[str, Any]]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        headers = (await reader.readuntil(b"\r\n\r\n")).decode()
        if " 200 " not in headers.partition("\r\n")[0]:
            raise RuntimeError((headers + (await reader.read(500)).decode(errors="replace"))[:600])
        async for line in _lines(reader):
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
    finally:
        writer.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body's lines, out of its HTTP chunks."""
    rest = b""
    while size := int(await reader.readline(), 16):
        chunk = await reader.readexactly(size + 2)
        *lines, rest = (rest + chunk[:-2]).split(b"\n")
        for line in lines:
            yield line.strip()
