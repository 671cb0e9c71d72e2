"""Requests to several engine processes behind one client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from inferno import host
from inferno.plan import Plan
from inferno.process.engines.client import EnginesClient, RoutedStream
from inferno.process.engines.router import Placed, Router
from inferno.request.requests import EngineOutput, Request
from inferno.request.sampling_params import SamplingParams

SHORT = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)
PROMPTS = [tuple(5 + (7 * i + j) % 90 for j in range(4 + 9 * i)) for i in range(6)]
EACH = [
    (prompt, params)
    for prompt in PROMPTS
    for params in (SHORT, SamplingParams(max_tokens=8, seed=3, ignore_eos=True))
]
"""All of them, greedy and seeded."""


def four_cores() -> Iterator[None]:
    """Let plans see four cores, meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "usable_cores", lambda: 4)
        yield


def request(
    name: str, params: SamplingParams = SHORT, token_ids: Sequence[int] = (5, 6, 7), **more: Any
) -> Request:
    return Request(id=name, token_ids=tuple(token_ids), params=params, **more)


async def collect(stream: AsyncIterable[list[EngineOutput]]) -> list[EngineOutput]:
    return [token for tokens in [batch async for batch in stream] for token in tokens]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)


def submit(client: EnginesClient, *requests: Request) -> list[RoutedStream]:
    streams = [client.submit(each) for each in requests]
    return [each for each in streams if isinstance(each, RoutedStream)]


class Dealing(Router):
    """Gives the engines requests by turns: what a busy machine measures decides nothing here."""

    turns = 0

    def place(self, request: Request, able: Sequence[int], answer_cost: float = 1.0) -> Placed:
        self.turns += 1
        return super().place(request, [able[self.turns % len(able)]], answer_cost)


def router(kind: type[Router]) -> Router:
    return kind(2, block_size=16, num_blocks=4096)


WithClient = Callable[[Callable[[EnginesClient], Awaitable[None]]], None]
"""Runs a body with a client."""


def running(plan: Plan) -> Iterator[WithClient]:
    """Start the plan's engines, and end them. Each body begins with a router that deals."""
    with asyncio.Runner() as runner:
        client = EnginesClient(plan)
        runner.run(client.start())

        async def run(body: Callable[[EnginesClient], Awaitable[None]]) -> None:
            client._router = router(Dealing)
            await body(client)

        yield lambda body: runner.run(run(body))
        runner.run(client.close())


async def both(client: EnginesClient, **more: Any) -> list[list[EngineOutput]]:
    """What each engine answers to the same request."""
    streams = submit(client, request("first", **more), request("second", **more))
    assert {stream.placed.engine for stream in streams} == {0, 1}
    return list(await asyncio.gather(*map(collect, streams)))


def ids(outputs: Sequence[EngineOutput]) -> list[int | None]:
    return [output.token_id for output in outputs]
