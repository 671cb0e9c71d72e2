"""Two engine processes behind one client: what reaches which, and what becomes of requests when one
dies. No clocks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from safetensors.torch import load_file, save_file
from tests.peft_adapters import matrices, pairs, write_peft
from tests.process.routed import (
    LONG,
    PROMPTS,
    SHORT,
    WithClient,
    both,
    collect,
    ids,
    request,
    router,
    running,
    submit,
    until,
)

from inferno import LLM, host
from inferno.contracts import LinkedInstance
from inferno.errors import AsleepError, EngineDeadError, InfernoError, OptionError
from inferno.llm.adapters import AdapterNames, reading
from inferno.plan import Options, Plan, open_model, resolve
from inferno.process.engines.client import EnginesClient, _Joined
from inferno.process.engines.router import Router
from inferno.process.engines.totals import total_health, total_stats
from inferno.process.health import Health
from inferno.process.protocol import Control
from inferno.process.ranks.binding import bind
from inferno.request.requests import EngineOutput, EngineStats, FinishReason, Request
from inferno.request.sampling_params import SamplingParams
from inferno.request.sessions import SessionHint
from inferno.weights.loading import load_model

pytest.importorskip("inferno_demo")


@pytest.fixture(scope="module")
def plan() -> Iterator[Plan]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "usable_cores", lambda: 2)
        yield resolve("demo", Options(device="cpu", memory="3GiB", dp=2, max_loras=1))


@pytest.fixture(scope="module")
def with_client(plan: Plan) -> Iterator[WithClient]:
    """Two engine processes for all tests: a start takes seconds. A test leaves them running."""
    yield from running(plan)


def test_tokens_are_those_of_one_engine(with_client: WithClient) -> None:
    params = [SHORT, SamplingParams(max_tokens=8, seed=3, ignore_eos=True)]
    each = [(prompt, one) for prompt in PROMPTS for one in params]
    with LLM("demo", device="cpu", memory="1GiB") as llm:
        answers = llm.generate([list(prompt) for prompt, _ in each], [one for _, one in each])
    wanted = [list(answer.outputs[0].token_ids) for answer in answers]

    async def body(client: EnginesClient) -> None:
        requests = [request(f"r{i}", one, prompt) for i, (prompt, one) in enumerate(each)]
        streams = submit(client, *requests)
        assert {stream.placed.engine for stream in streams} == {0, 1}
        assert [ids(await collect(stream)) for stream in streams] == wanted

    with_client(body)


def test_a_conversation_goes_on_where_its_prefix_is_cached(with_client: WithClient) -> None:
    async def body(client: EnginesClient) -> None:
        client._router = router(Router)
        turns = [[5 + (3 * i + talk) % 90 for i in range(320)] for talk in range(2)]
        streams = submit(client, *(request(f"r{i}", token_ids=t) for i, t in enumerate(turns)))
        homes = [stream.placed.engine for stream in streams]
        assert set(homes) == {0, 1}
        for i, stream in enumerate(streams):
            turns[i] += [token.token_id or 0 for token in await collect(stream)]
        for i in (1, 0):
            [stream] = submit(client, request("again", token_ids=[*turns[i], 5, 6, 7]))
            assert stream.placed.engine == homes[i]
            assert (await collect(stream))[0].num_cached >= 320

    with_client(body)


def test_a_request_names_its_engine_and_another_answers_while_that_cannot(
    with_client: WithClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(client: EnginesClient) -> None:
        named = submit(client, *(request(f"r{i}", engine=n) for i, n in enumerate((1, 1, 0, 1))))
        assert [stream.placed.engine for stream in named] == [1, 1, 0, 1]
        monkeypatch.setattr(client, "_able", lambda: [0])
        [other] = submit(client, request("other", engine=1))
        assert other.placed.engine == 0
        answers = [ids(await collect(stream)) for stream in (*named, other)]
        assert answers == answers[:1] * 5 and len(answers[0]) == 8

    with_client(body)


def test_what_both_count_is_the_sum(with_client: WithClient) -> None:
    async def body(client: EnginesClient) -> None:
        before = [view.stats.generated_tokens for view in client.engines]
        await both(client)

        def grown() -> bool:
            now = [view.stats.generated_tokens for view in client.engines]
            return all(b - a >= 8 for a, b in zip(before, now, strict=True))

        await until(grown)
        views = client.engines
        assert client.stats.generated_tokens == sum(v.stats.generated_tokens for v in views)
        assert [view.state for view in views] == ["ok", "ok"]
        assert len({view.pid for view in views}) == 2

    with_client(body)


def test_an_abort_finds_the_request_s_engine(with_client: WithClient) -> None:
    async def body(client: EnginesClient) -> None:
        streams = submit(client, request("a", LONG), request("b", LONG))
        for name in ("a", "b", "never seen"):
            client.abort(name)
        for stream in streams:
            assert (await collect(stream))[-1].finish == FinishReason.ABORT
        assert not client._streams

    with_client(body)


def test_both_sleep_and_wake_up(with_client: WithClient) -> None:
    async def body(client: EnginesClient) -> None:
        expected = await both(client)
        await client.control(Control(action="sleep"))
        assert client.asleep and all(engine.asleep for engine in client._engines)
        with pytest.raises(AsleepError):
            client.submit(request("x"))
        await client.control(Control(action="wake_up"))
        assert not any(engine.asleep for engine in client._engines)
        assert [ids(each) for each in await both(client)] == [ids(each) for each in expected]

    with_client(body)


def test_both_pause_and_forget_their_prefixes(with_client: WithClient) -> None:
    prompt = PROMPTS[5] * 6

    async def cached(client: EnginesClient) -> list[int]:
        outputs = await both(client, token_ids=prompt)
        return sorted(each[0].num_cached for each in outputs)

    async def body(client: EnginesClient) -> None:
        await client.control(Control(action="reset_prefix_cache"))
        assert await cached(client) == [0, 0]
        assert min(await cached(client)) > 0, "either has computed it"
        await client.control(Control(action="reset_prefix_cache"))
        assert await cached(client) == [0, 0]
        await client.control(Control(action="pause"))
        assert client.paused and all(engine.paused for engine in client._engines)
        streams = submit(client, request("a"), request("b"))
        await client.control(Control(action="resume"))
        assert [len(await collect(stream)) for stream in streams] == [8, 8]

    with_client(body)


def test_what_is_kept_of_sessions_is_seen_and_ended_in_both(with_client: WithClient) -> None:
    async def body(client: EnginesClient) -> None:
        names = ["one", "two"]
        hints = [SessionHint(name, "me") for name in names]
        requests = [
            request(hint.name, token_ids=PROMPTS[5] * 3, session=hint, cache_salt=hint.name)
            for hint in hints
        ]
        streams = submit(client, *requests)
        assert {stream.placed.engine for stream in streams} == {0, 1}
        await asyncio.gather(*map(collect, streams))
        assert {view.name for view in await client.sessions("me", limit=9)} == set(names)
        assert len(await client.sessions("me", limit=1)) == 1
        for name in names:
            [view] = await client.sessions("me", name, ends=True)
            assert view.name == name and view.tokens > 0
        assert await client.sessions("me", limit=9) == []

    with_client(body)


def test_an_adapter_is_read_by_both(with_client: WithClient, plan: Plan, tmp_path: Path) -> None:
    path = write_peft(tmp_path / "good", pairs(matrices(Path(plan.path)), 1, 4))
    with open_model("demo", Options(device="cpu", max_loras=1)) as opened:
        adapter = AdapterNames.of(opened).look_up("good", str(path)).adapter
    bad = evolve(adapter, digest="of another")

    async def body(client: EnginesClient) -> None:
        plain, same = await both(client)
        assert ids(plain) == ids(same)
        stream = client.submit(reading(adapter).request)
        assert isinstance(stream, _Joined) and stream.left == 2
        [read] = await collect(stream)
        assert not read.error
        [refused] = await collect(client.submit(reading(bad).request))
        assert refused.error
        changed, same = await both(client, adapter=adapter)
        assert ids(changed) == ids(same) != ids(plain)

    with_client(body)


def test_a_killed_engine_is_less_capacity(with_client: WithClient) -> None:
    """Its streams are told, requests without a token go to the other, whose streams go on."""

    async def body(client: EnginesClient) -> None:
        wanted = ids(await collect(client.submit(request("wanted", LONG))))
        streams = submit(client, *(request(f"r{i}", LONG) for i in range(4)))
        assert [stream.placed.engine for stream in streams].count(0) == 2
        readers = [asyncio.create_task(collect(stream)) for stream in streams]
        await until(lambda: all(stream.has_begun for stream in streams))
        dead = client.engines[0].pid
        assert dead is not None
        os.kill(dead, signal.SIGKILL)
        late = submit(client, *(request(f"late{i}") for i in range(4)))
        told = [r for s, r in zip(streams, readers, strict=True) if s.placed.engine == 0]
        await asyncio.wait(told)
        assert client.alive and not client.stalled
        assert [view.state for view in client.engines] == ["restarting", "ok"]
        answers = await asyncio.gather(*map(collect, late))
        assert [len(answer) for answer in answers] == [8] * 4
        assert any(stream.moved for stream in late)
        for stream, reader in zip(streams, readers, strict=True):
            if stream.placed.engine == 0:
                with pytest.raises(EngineDeadError, match="SIGKILL"):
                    await reader
            else:
                assert ids(await reader) == wanted
        assert not client._streams
        await until(lambda: client.engines[0].state == "ok")
        assert client.health.restarts == 1 and client.failed_starts == 0
        await both(client)

    with_client(body)


@pytest.mark.slow
def test_an_engine_that_missed_an_update_gets_no_requests(
    with_client: WithClient, plan: Plan, tmp_path: Path
) -> None:
    tensors = load_file(Path(plan.path) / "model.safetensors")
    changed = {name: each.flip(0) for name, each in tensors.items() if "down_proj" in name}

    async def update(client: EnginesClient, version: str | None) -> None:
        file = tmp_path / "changed.safetensors"
        save_file(changed, file)
        await client.control(
            Control(action="update_weights", path=str(file), temporary=True, version=version)
        )
        assert list(tmp_path.iterdir()) == [], "each engine has deleted its own"

    async def body(client: EnginesClient) -> None:
        plain = await both(client)
        await update(client, None)
        assert client.weight_version == "1"
        one, two = await both(client)
        assert ids(one) == ids(two) != ids(plain[0])
        assert one[0].weight_version == two[0].weight_version == "1"
        pid, restarts = client.engines[1].pid, client.health.restarts
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: client.health.restarts > restarts and client._engines[1].alive)
        assert [view.state for view in client.engines] == ["ok", "outdated"]
        streams = submit(client, request("a"), request("b"))
        assert [stream.placed.engine for stream in streams] == [0, 0]
        for stream in streams:
            assert ids(await collect(stream)) == ids(one)
        await update(client, "new")
        assert client.weight_version == "new"
        assert [view.state for view in client.engines] == ["ok", "ok"]
        assert [ids(each) for each in await both(client)] == [ids(one), ids(one)]

    with_client(body)


@pytest.mark.slow
def test_an_engine_that_does_not_start_is_told_and_leaves_none(plan: Plan) -> None:
    async def start() -> None:
        client = EnginesClient(evolve(plan, path="/nowhere"))
        with pytest.raises(InfernoError, match="nowhere"):
            await client.start()
        for view in client.engines:
            if view.pid is not None:
                with pytest.raises(ProcessLookupError):
                    os.kill(view.pid, 0)
        with pytest.raises(EngineDeadError, match="was closed"):
            client.submit(request("a"))

    asyncio.run(start())


class Fake:
    """One of two engines that was not started: what moves a request, and what does not."""

    def __init__(self, client: EnginesClient) -> None:
        self.alive, self.killed, self.paused, self.weight_version = True, True, False, "0"
        self.asleep, self.restarts, self.stats = False, 0, EngineStats()
        self.sent: list[Request] = []

    def submit(self, request: Request, news: Any = None, stream: Any = None) -> Any:
        self.sent.append(request)
        return stream


@pytest.mark.parametrize(
    ("killed", "begun", "others", "moved"),
    [(True, 0, 1, True), (False, 0, 1, False), (True, 1, 1, False), (True, 0, 0, False)],
)
def test_what_may_have_ended_an_engine_is_not_sent_to_the_next(
    plan: Plan, killed: bool, begun: int, others: int, moved: bool
) -> None:
    async def body() -> None:
        client = EnginesClient(plan)
        fakes: list[Any] = [Fake(client), Fake(client)]
        client._engines = fakes
        [stream] = submit(client, request("a"))
        first, other = fakes[stream.placed.engine], fakes[1 - stream.placed.engine]
        for _ in range(begun):
            stream.feed(EngineOutput("a", 7))
        first.alive, first.killed, other.alive = False, killed, bool(others)
        stream.fail(EngineDeadError("it ended", ""))
        assert bool(other.sent) is stream.moved is moved
        if moved:  # once only
            other.alive, first.alive = False, True
            stream.fail(EngineDeadError("that too", ""))
            assert len(first.sent) == 1
        assert len(stream.take() if begun else []) == begun
        with pytest.raises(EngineDeadError):
            stream.take()
        assert not client._streams
        assert all((load.prompts, load.answers) == (0, 0) for load in client._router._loads)

    asyncio.run(body())


def test_counts_are_summed_and_times_are_of_engines_beside_each_other() -> None:
    one = EngineStats(num_running=1, kv_usage=0.2, generated_tokens=5, fallbacks={"a": 1})
    two = EngineStats(num_running=2, kv_usage=0.4, generated_tokens=7, fallbacks={"a": 2, "b": 1})
    one.step_sizes[0], two.step_sizes[0] = 3, 4
    one.instances = {"a": LinkedInstance(True, 1, 2, {"late": 1}), "b": LinkedInstance(True)}
    two.instances = {"a": LinkedInstance(False, 2, 3, {"late": 2})}
    one.prompt_seconds, two.prompt_seconds, two.row_seconds = 0.2, 0.4, 0.1
    total = total_stats([one, two])
    assert (total.num_running, total.generated_tokens, total.step_sizes[0]) == (3, 12, 7)
    assert total.kv_usage == pytest.approx(0.3)
    assert total.fallbacks == {"a": 3, "b": 1}
    assert total.instances == {
        "a": LinkedInstance(False, 3, 5, {"late": 3}),
        "b": LinkedInstance(True),
    }
    assert total.prompt_seconds == pytest.approx(0.15)
    assert total.row_seconds == pytest.approx(0.1)
    health = total_health([Health(restarts=1, failed_starts=3, still=2), Health(restarts=2)])
    assert (health.restarts, health.failed_starts, health.still) == (3, 0, 2)


def test_a_command_that_runs_one_process_refuses_a_plan_with_engines(plan: Plan) -> None:
    with (
        open_model("demo", Options(device="cpu")) as opened,
        pytest.raises(OptionError, match="several engines\nLeave --dp out"),
    ):
        load_model(evolve(opened, plan=plan))


def test_an_engine_runs_on_its_cores() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    undo = bind(evolve(resolve("demo", Options(device="cpu")), cores=(core,)), 0)
    assert os.sched_getaffinity(0) == {core}
    undo()
    assert os.sched_getaffinity(0) == before


@pytest.mark.slow
def test_an_llm_computes_with_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: 2)
    prompts = [list(prompt) for prompt in PROMPTS]
    with LLM("demo", device="cpu", memory="1GiB") as llm:
        wanted = [each.outputs[0].token_ids for each in llm.generate(prompts, SHORT)]
    with LLM("demo", device="cpu", memory="3GiB", dp=2) as llm:
        assert [each.outputs[0].token_ids for each in llm.generate(prompts, SHORT)] == wanted
        llm.sleep()
        assert llm.is_sleeping
        llm.wake_up()
        assert [each.outputs[0].token_ids for each in llm.generate(prompts, SHORT)] == wanted
        assert llm.weight_version == "0"
