"""Engines that share a mixture's experts (`--dp 2 --ep`) compute together, in threads and in
processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
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
from tests.process.toy_mixture import write_mixture

from inferno import LLM
from inferno.catalog import Catalog, load_catalog
from inferno.errors import EngineDeadError, UnsupportedError
from inferno.plan import Options, Plan, resolve
from inferno.process.engines.client import EnginesClient
from inferno.process.engines.together import Together
from inferno.process.protocol import Control
from inferno.request.requests import FinishReason
from inferno.testing.thread_engines import ThreadEngines
from inferno.testing.thread_ranks import GREEDY, SEEDED, answers, load_shared, tokens_of
from inferno.testing.tiny import without_kernels

pytest.importorskip("inferno_demo")

LIMITS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 256, "threads": 1}
STOPS = [
    (Control(action="pause", mode="wait"), Control(action="resume")),
    (Control(action="sleep", mode="wait"), Control(action="wake_up")),
]
LONGEST = evolve(LONG, max_tokens=240)


@pytest.fixture(scope="module", autouse=True)
def cores() -> Iterator[None]:
    yield from four_cores()


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    write_mixture(path)
    return path


@pytest.fixture(scope="module")
def plan(toy: Path) -> Plan:
    return resolve(str(toy), Options(dp=2, ep=True, memory="3GiB", **LIMITS))


@pytest.fixture(scope="module")
def with_client(plan: Plan) -> Iterator[WithClient]:
    yield from running(plan)


@pytest.fixture(scope="module")
def wanted(toy: Path) -> list[list[int]]:
    """What one engine answers."""
    with LLM(str(toy), memory="1GiB", **LIMITS) as llm:
        found = llm.generate([list(prompt) for prompt, _ in EACH], [one for _, one in EACH])
    return [list(answer.outputs[0].token_ids) for answer in found]


async def assert_answers(client: EnginesClient, wanted: list[list[int]]) -> None:
    """Both engines answer, with these tokens."""
    requests = [request(f"r{i}", params, prompt) for i, (prompt, params) in enumerate(EACH)]
    streams = submit(client, *requests)
    assert {stream.placed.engine for stream in streams} == {0, 1}
    assert [ids(await collect(stream)) for stream in streams] == wanted


def test_three_engines_give_the_tokens_of_one_whatever_the_others_compute(toy: Path) -> None:
    """With prompts of several lengths beside each other, and with one request alone."""
    catalog: Catalog = without_kernels(load_catalog())
    one, three = load_shared(toy, catalog, 1), ThreadEngines.load(toy, catalog, 3)
    prompts = [[107, 32, 79], [*range(30, 70)], [5], [*range(90, 40, -1)]]
    for params in (evolve(GREEDY, max_tokens=8), evolve(SEEDED, max_tokens=8)):
        for some in (prompts, prompts[:1]):
            assert tokens_of(three.answers(some, params)) == tokens_of(answers(one, some, params))
    assert not any(each.owes for each in three.together), "they rest"
    three.close()
    one.close()


def test_an_engine_says_which_other_one_has_ended(toy: Path) -> None:
    engines = ThreadEngines.load(toy, without_kernels(load_catalog()))
    engines.together[0].leave()
    with pytest.raises(EngineDeadError, match="engine 0, which has some of the experts"):
        assert engines.together[1].owes
    engines.close()


def test_an_engine_knows_what_the_steps_of_all_take_and_whose_streams_wait(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short step beside a long one is no hang, and a long one delays the streams of all."""
    engines, compute = ThreadEngines.load(toy, without_kernels(load_catalog())), Together._compute
    first, second = engines.together
    first.own, second.own, expected = lambda: 0.5, lambda: 30.0, set[float | None]()
    waiting = set[tuple[bool, ...]]()

    def computed(self: Together, *given: Any) -> Any:
        expected.add(self.expected)
        if self is second:
            waiting.add(tuple(each.budget.others_stream() for each in engines.engines))
        return compute(self, *given)

    monkeypatch.setattr(Together, "_compute", computed)
    engines.answers([[5, 6]], evolve(GREEDY, max_tokens=2))
    assert expected == {30.5} and (False, True) in waiting and (True, True) not in waiting
    second.own = lambda: None
    engines.answers([[5, 6]], evolve(GREEDY, max_tokens=2))
    assert expected == {30.5, None}
    engines.close()


def test_a_child_of_fork_leaves_the_folder_in_which_engines_meet(plan: Plan) -> None:
    """When it closes its copy of the client, and when it ends."""
    client = EnginesClient(plan)
    dealt = client._engines[0].plan.dealt
    assert dealt is not None and Path(dealt.folder).is_dir()
    if (child := os.fork()) == 0:
        client._remove_folder()
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(dealt.folder).is_dir()
    client._remove_folder()
    assert not Path(dealt.folder).exists()


@pytest.mark.slow
def test_tokens_are_those_of_one_engine(with_client: WithClient, wanted: list[list[int]]) -> None:
    async def body(client: EnginesClient) -> None:
        await assert_answers(client, wanted)
        only = [request(f"r{i}", EACH[i][1], EACH[i][0], engine=1) for i in range(2)]
        streams = submit(client, *only)
        assert [ids(await collect(stream)) for stream in streams] == wanted[:2]

    with_client(body)


@pytest.mark.slow
def test_a_killed_engine_fails_all_streams_and_all_restart(
    with_client: WithClient, wanted: list[list[int]]
) -> None:
    """All streams fail, and no request is taken until all engines are there again."""

    async def body(client: EnginesClient) -> None:
        streams = submit(client, *(request(f"r{i}", LONGEST) for i in range(4)))
        readers = [asyncio.create_task(collect(stream)) for stream in streams]
        await until(lambda: all(stream.has_begun for stream in streams))
        dead = client.engines[1].pid
        assert dead is not None
        os.kill(dead, signal.SIGKILL)
        await asyncio.wait(readers)
        for reader in readers:
            with pytest.raises(EngineDeadError, match="SIGKILL|engine 1, which|does not answer"):
                await reader
        assert not client.alive and not client._streams
        with pytest.raises(EngineDeadError):
            client.submit(request("early"))
        await until(lambda: client.alive)
        assert client.health.restarts == 2
        await assert_answers(client, wanted)

    with_client(body)


@pytest.mark.slow
def test_an_engine_that_is_killed_while_all_rest_restarts_all(
    with_client: WithClient, wanted: list[list[int]]
) -> None:
    async def body(client: EnginesClient) -> None:
        restarts = client.health.restarts
        dead = client.engines[0].pid
        assert dead is not None
        os.kill(dead, signal.SIGKILL)
        await until(lambda: client.health.restarts == restarts + 2 and client.alive)
        await assert_answers(client, wanted)

    with_client(body)


@pytest.mark.slow
def test_an_engine_that_does_not_answer_fails_the_requests_of_all(
    with_client: WithClient, wanted: list[list[int]]
) -> None:
    """The other engine waits for it."""

    async def body(client: EnginesClient) -> None:
        streams = submit(client, *(request(f"r{i}", LONGEST) for i in range(4)))
        assert {stream.placed.engine for stream in streams} == {0, 1}
        watchdog = client._engines[1]._engine._watchdog
        assert watchdog is not None and all(view.state == "ok" for view in client.engines)
        watchdog._stopped = True
        assert [view.state for view in client.engines] == ["waiting", "restarting"]
        watchdog._stopped = False
        client._engines[1]._lost()
        for stream in streams:
            with pytest.raises(EngineDeadError, match="does not respond"):
                await collect(stream)
        await assert_answers(client, wanted)

    with_client(body)


@pytest.mark.slow
def test_controls_reach_an_idle_engine_while_the_other_computes(with_client: WithClient) -> None:
    """One whose requests have ended takes part until those of the other have."""

    async def body(client: EnginesClient) -> None:
        expected = [ids(each) for each in await both(client)]
        for do, undo in STOPS:
            [stream] = submit(client, request("long", LONGEST, engine=1))
            reader = asyncio.create_task(collect(stream))
            await until(lambda: stream.has_begun)  # noqa: B023  # awaited at once
            await client.control(do)
            assert (await reader)[-1].finish == FinishReason.LENGTH
            await client.control(undo)
            assert [ids(each) for each in await both(client)] == expected
        for control in (Control(action="sleep", level=2), Control(action="update_weights")):
            with pytest.raises(UnsupportedError, match="cannot read weights anew"):
                await client.control(control)

    with_client(body)
