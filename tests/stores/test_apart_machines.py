"""Prefill and decode apart, each with a rank on each of two machines: network namespaces, joined by
a cable."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.process.test_machines import FIRST, GREEDY, OPTIONS, OTHER, Cable, cable, ranks_of
from tests.stores.test_apart import PROMPTS, counted, token_file

from inferno.plan import Options, resolve
from inferno.process import launch
from inferno.process.client import EngineClient
from inferno.request.requests import EngineOutput, Request

__all__ = ["cable"]
pytest.importorskip("inferno_disaggregated")
pytestmark = pytest.mark.slow

HOSTS = FIRST, OTHER
PORTS = 29_421, 29_422
"""Where the ranks of the two instances join."""
Answer = tuple[list[int | None], int]


@contextmanager
def rank(cable: Cable, machine: int, first: int, token: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the other rank of an instance on a machine. `first` is the instance's first machine."""
    where = f"{HOSTS[first]}:{PORTS[first]}"
    command = [sys.executable, "-m", "inferno", "rank", "--join", where]
    process = subprocess.Popen([*cable.within(machine), *command, "--rank-token-file", token])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def ask(client: EngineClient, prompt: list[int]) -> Answer:
    """Return the tokens of an answer, and how many of the prompt's came from elsewhere."""
    outputs = list[EngineOutput]()
    request = Request(id=f"{prompt[0]}", token_ids=tuple(prompt), params=GREEDY)
    async for batch in client.submit(request):
        outputs += batch
    return [each.token_id for each in outputs], counted(outputs).num_remote or 0


@pytest.mark.parametrize("shared", [{"tp": 2}, {"pp": 2}], ids=["tp", "pp"])
def test_each_rank_finds_that_of_its_number_on_either_machine(
    shared: dict[str, int], cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instances' first machines are not the same one."""
    ranks_token, token = token_file(tmp_path / "ranks"), token_file(tmp_path / "link")
    url = f"tcp://{FIRST}+{OTHER}:7000"

    def client_on(first: int, **options: Any) -> EngineClient:
        joined = {"rank_host": HOSTS[first], "rank_port": PORTS[first], "nodes": 2}
        given: dict[str, Any] = OPTIONS | joined | shared | options | {"pd_token_file": token}
        return EngineClient(resolve("demo", Options(rank_token_file=ranks_token, **given)))

    async def alone() -> list[Answer]:
        client = EngineClient(resolve("demo", Options(**OPTIONS)))
        await client.start()
        try:
            return [await ask(client, prompt) for prompt in PROMPTS]
        finally:
            await client.close()

    async def run(other: Any) -> list[Answer]:
        there = client_on(0, prefill_for=url)
        here = client_on(1, decode_with=url, pd_min_tokens=20, pd_min_uncached=20)
        command = launch._COMMAND
        try:
            for machine, client in ((1, here), (0, there)):  # the second one starts anew below
                monkeypatch.setattr(launch, "_COMMAND", (*cable.within(machine), *command))
                await client.start()
            numbers = count(700)

            async def met() -> None:
                """Wait until prompts come from all ranks."""
                while not (await ask(here, [next(numbers), *PROMPTS[0]]))[1]:
                    await asyncio.sleep(0.5)

            await met()
            answers = [await ask(here, prompt) for prompt in PROMPTS]
            [number] = ranks_of(other)
            os.kill(number, signal.SIGKILL)
            assert await ask(here, [5, *PROMPTS[0]]), "it is computed here"
            await met()
            return answers
        finally:
            await here.close()
            await there.close()

    right = asyncio.run(alone())
    with ExitStack() as stack:
        other = stack.enter_context(rank(cable, 1, 0, ranks_token))
        stack.enter_context(rank(cable, 0, 1, ranks_token))
        answers = asyncio.run(asyncio.wait_for(run(other), 150))
    assert [tokens for tokens, _ in answers] == [tokens for tokens, _ in right]
    assert [remote for _, remote in answers] == [(len(p) - 1) // 16 * 16 for p in PROMPTS]
