"""Two engines, each a group of two rank processes, behind one client (`--dp 2 --tp 2`)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.process.routed import (
    EACH,
    LONG,
    WithClient,
    both,
    collect,
    four_cores,
    ids,
    request,
    running,
    submit,
    until,
)

from inferno import LLM
from inferno.errors import EngineDeadError
from inferno.plan import Options, Plan, resolve
from inferno.process.engines.client import EnginesClient
from inferno.process.protocol import Control

pytest.importorskip("inferno_demo")


def plan_of(**options: Any) -> Plan:
    """In float32: in fewer bits, sums of two parts are rounded to other tokens."""
    given = Options(device="cpu", dtype="float32", memory="3GiB", dp=2, **options)
    return resolve("demo", given)


@pytest.fixture(scope="module", autouse=True)
def cores() -> Iterator[None]:
    yield from four_cores()


@pytest.fixture(scope="module")
def with_client() -> Iterator[WithClient]:
    yield from running(plan_of(tp=2))


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    """What one process answers."""
    with LLM("demo", device="cpu", dtype="float32", memory="1GiB") as llm:
        answers = llm.generate([list(prompt) for prompt, _ in EACH], [one for _, one in EACH])
    return [list(answer.outputs[0].token_ids) for answer in answers]


async def assert_answers(client: EnginesClient, wanted: list[list[int]]) -> None:
    """Both engines answer, with these tokens."""
    requests = [request(f"r{i}", params, prompt) for i, (prompt, params) in enumerate(EACH)]
    streams = submit(client, *requests)
    assert {stream.placed.engine for stream in streams} == {0, 1}
    assert [ids(await collect(stream)) for stream in streams] == wanted


def followers(client: EnginesClient, engine: int) -> list[int]:
    """Return the process ids of an engine's ranks but the first."""
    leader = client.engines[engine].pid
    threads = Path(f"/proc/{leader}/task").glob("*/children")
    children = [int(child) for each in threads for child in each.read_text().split()]
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [child for child, command in commands.items() if b"process.ranks" in command]


@pytest.mark.slow
def test_tokens_are_those_of_one_process(with_client: WithClient, wanted: list[list[int]]) -> None:
    async def body(client: EnginesClient) -> None:
        await assert_answers(client, wanted)
        assert [len(followers(client, engine)) for engine in range(2)] == [1, 1]

    with_client(body)


@pytest.mark.slow
def test_a_killed_rank_ends_and_restarts_its_own_group_only(
    with_client: WithClient, wanted: list[list[int]]
) -> None:
    """Its streams are told, requests without a token go to the other group, whose streams go on
    with the right tokens."""

    async def body(client: EnginesClient) -> None:
        long = ids(await collect(client.submit(request("long", LONG))))
        pids = [view.pid for view in client.engines]
        streams = submit(client, *(request(f"r{i}", LONG) for i in range(4)))
        readers = [asyncio.create_task(collect(stream)) for stream in streams]
        await until(lambda: all(stream.has_begun for stream in streams))
        [rank] = followers(client, 0)
        os.kill(rank, signal.SIGKILL)
        late = submit(client, *(request(f"late{i}") for i in range(4)))
        told = [r for s, r in zip(streams, readers, strict=True) if s.placed.engine == 0]
        await asyncio.wait(told)
        assert len(told) == 2 and client.alive
        assert [view.state for view in client.engines] == ["restarting", "ok"]
        answers = await asyncio.gather(*map(collect, late))
        assert [len(answer) for answer in answers] == [8] * 4
        assert any(stream.moved for stream in late)
        for stream, reader in zip(streams, readers, strict=True):
            if stream.placed.engine == 0:
                with pytest.raises(EngineDeadError, match="rank 1 of 2 was killed by SIGKILL"):
                    await reader
            else:
                assert ids(await reader) == long
        await until(lambda: client.engines[0].state == "ok")
        assert client.health.restarts == 1
        assert client.engines[0].pid != pids[0] and client.engines[1].pid == pids[1]
        await assert_answers(client, wanted)

    with_client(body)


@pytest.mark.slow
def test_all_groups_sleep_wake_up_and_take_other_weights(
    with_client: WithClient, wanted: list[list[int]], tmp_path: Path
) -> None:
    async def body(client: EnginesClient) -> None:
        for level in (1, 2):
            await client.control(Control(action="sleep", level=level))
            assert all(engine.asleep for engine in client._engines)
            await client.control(Control(action="wake_up"))
            await assert_answers(client, wanted)
        tensors = load_file(Path(client.plan.path) / "model.safetensors")
        changed = {name: each.flip(0) for name, each in tensors.items() if "down_proj" in name}
        plain = await both(client)
        for version, given in (("new", changed), ("old", tensors)):
            file = tmp_path / "weights.safetensors"
            save_file(given, file)
            await client.control(
                Control(action="update_weights", path=str(file), temporary=True, version=version)
            )
            assert client.weight_version == version and list(tmp_path.iterdir()) == []
            one, two = await both(client)
            assert ids(one) == ids(two) and (ids(one) == ids(plain[0])) is (version == "old")

    with_client(body)


@pytest.mark.slow
def test_engines_of_pipeline_stages_give_the_tokens_of_one_process(wanted: list[list[int]]) -> None:
    async def body(client: EnginesClient) -> None:
        await assert_answers(client, wanted)

    for with_client in running(plan_of(pp=2)):
        with_client(body)
