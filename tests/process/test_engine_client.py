"""The engine in a process of its own: what it says when it cannot start, and what happens when it
dies. No clocks: `EngineClient.start` returns when the engine is ready or has ended."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from pathlib import Path

import attrs
import pytest
from safetensors.torch import load_file, save_file

from inferno.contracts import GrammarSpec
from inferno.errors import CheckpointError, EngineDeadError, PluginError
from inferno.plan import Chosen, Options, Plan, resolve
from inferno.process import launch
from inferno.process.client import EngineClient
from inferno.process.protocol import Control
from inferno.process.supervisor import Supervisor
from inferno.process.watchdog import Watchdog
from inferno.process.worker import ToClient
from inferno.request.requests import EngineOutput, FinishReason, Request
from inferno.request.sampling_params import SamplingParams

pytest.importorskip("inferno_demo")

LONG = SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve("demo", Options(memory="2GiB"))


def request(
    name: str, params: SamplingParams = LONG, *, token_ids: tuple[int, ...] = (5, 6, 7)
) -> Request:
    return Request(id=name, token_ids=token_ids, params=params)


async def collect(stream: AsyncIterable[list[EngineOutput]]) -> list[EngineOutput]:
    return [token for tokens in [batch async for batch in stream] for token in tokens]


WithClient = Callable[[Callable[[EngineClient], Awaitable[None]]], None]
"""Runs a body with the module's client."""


@pytest.fixture(scope="module")
def with_client(plan: Plan) -> Iterator[WithClient]:
    """One engine process for all tests: a start takes seconds. A test leaves it running."""
    with asyncio.Runner() as runner:
        client = EngineClient(plan)
        runner.run(client.start())

        async def run(body: Callable[[EngineClient], Awaitable[None]]) -> None:
            await body(client)

        yield lambda body: runner.run(run(body))
        runner.run(client.close())


def test_tokens_come_in_order_and_the_stream_ends(with_client: WithClient) -> None:
    async def body(client: EngineClient) -> None:
        params = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
        one, two = await asyncio.gather(
            collect(client.submit(request("a", params))),
            collect(client.submit(request("b", params))),
        )
        assert [t.token_id for t in one] == [t.token_id for t in two]
        assert [t.finish for t in one] == [None] * 8 + [FinishReason.LENGTH]

    with_client(body)


def test_no_message_is_missed_however_sends_and_answers_cross(with_client: WithClient) -> None:
    """libzmq's descriptor is silent about a message that came while something was sent."""

    async def body(client: EngineClient) -> None:
        async def one_after_another(name: str) -> None:
            for i in range(60):
                params = SamplingParams(max_tokens=1 + i % 3, ignore_eos=True)
                assert (
                    len(await collect(client.submit(request(f"{name}{i}", params))))
                    == params.max_tokens
                )
                client.abort(f"{name}{i}")

        await asyncio.gather(*map(one_after_another, "abcdef"))

    with_client(body)


def test_a_request_the_engine_refuses_ends_alone(with_client: WithClient) -> None:
    async def body(client: EngineClient) -> None:
        other = client.submit(request("other", SamplingParams(max_tokens=5, ignore_eos=True)))
        [refused] = await collect(client.submit(request("bad", token_ids=(10**6,))))
        assert refused.finish == FinishReason.ERROR
        assert "1000000" in refused.error
        assert len(await collect(other)) == 5

    with_client(body)


def test_an_aborted_stream_ends_at_once(with_client: WithClient) -> None:
    async def body(client: EngineClient) -> None:
        stream = client.submit(request("a"))
        client.abort("a")
        client.abort("never seen")
        assert (await collect(stream))[-1].finish == FinishReason.ABORT
        assert (
            len(
                await collect(
                    client.submit(request("a", SamplingParams(max_tokens=3, ignore_eos=True)))
                )
            )
            == 3
        )

    with_client(body)


def test_a_killed_engine_fails_waiting_requests_and_is_restarted(with_client: WithClient) -> None:
    async def body(client: EngineClient) -> None:
        streams = [client.submit(request(f"r{i}")) for i in range(8)]
        readers = [asyncio.create_task(collect(s)) for s in streams]
        first = client.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        for reader in readers:
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await reader
        with pytest.raises(EngineDeadError):
            client.submit(request("too early"))
        while not client.alive:
            await asyncio.sleep(0.05)
        assert client.pid != first
        assert (
            len(
                await collect(
                    client.submit(request("r0", SamplingParams(max_tokens=4, ignore_eos=True)))
                )
            )
            == 4
        )

    with_client(body)


@pytest.mark.slow
def test_a_killed_engine_comes_back_with_the_weights_that_it_says(
    with_client: WithClient, plan: Plan, tmp_path: Path
) -> None:
    """Those of the checkpoint, version 0, and neither paused nor asleep."""
    tensors = load_file(Path(plan.path) / "model.safetensors")
    changed = {name: each.flip(0) for name, each in tensors.items() if "down_proj" in name}
    save_file(changed, tmp_path / "changed.safetensors")
    update = Control(
        action="update_weights", path=str(tmp_path / "changed.safetensors"), version="new"
    )
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)

    async def body(client: EngineClient) -> None:
        async def answer(name: str) -> tuple[list[int | None], str]:
            outputs = await collect(client.submit(request(name, greedy)))
            return [output.token_id for output in outputs], outputs[0].weight_version

        before, version = await answer("before")
        assert version == client.weight_version == "0"
        await client.control(update)
        other, version = await answer("updated")
        assert other != before and version == client.weight_version == "new"
        await client.control(Control(action="pause"))
        assert client.paused
        first = client.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: client.pid != first and client.alive)
        assert (client.weight_version, client.paused, client.asleep) == ("0", False, False)
        assert await answer("after") == (before, "0")

    with_client(body)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="only POSIX systems stop processes")
def test_a_stopped_engine_is_not_alive_and_goes_on_when_it_is_continued(plan: Plan) -> None:
    async def run() -> None:
        client = EngineClient(plan, timeout=1000, beat=0.1)
        await client.start()
        stream = client.submit(request("a", SamplingParams(max_tokens=40, ignore_eos=True)))
        reader = asyncio.create_task(collect(stream))
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        await until(lambda: not client.alive)
        with pytest.raises(EngineDeadError, match="does not respond"):
            client.submit(request("b"))
        os.kill(client.pid, signal.SIGCONT)
        assert len(await reader) == 40
        await until(lambda: client.alive)
        assert client.restarts == 0
        await client.close()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="only POSIX systems stop processes")
def test_an_engine_that_stays_stopped_is_replaced(plan: Plan) -> None:
    async def run() -> None:
        client = EngineClient(plan, timeout=2, beat=0.1)
        await client.start()
        reader = asyncio.create_task(collect(client.submit(request("a"))))
        stopped = client.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(EngineDeadError, match="does not respond"):
            await reader
        await until(lambda: not client.alive and client.restarts == 1)
        await until(lambda: client.alive)
        assert client.pid != stopped and client.restarts == 1
        await client.close()

    asyncio.run(run())


@pytest.mark.slow
def test_an_engine_whose_messages_do_not_come_is_replaced(plan: Plan) -> None:
    async def run() -> None:
        client = EngineClient(plan, timeout=4, beat=0.1)
        await client.start()
        await asyncio.sleep(3)
        assert client.alive and client.restarts == 0, "an idle one is asked, and answers"
        supervisor = client._engine
        assert isinstance(supervisor, Supervisor) and supervisor._connection is not None
        first, supervisor._connection.take = client.pid, lambda kind, body: None
        reader = asyncio.create_task(collect(client.submit(request("a"))))
        with pytest.raises(EngineDeadError, match="does not respond"):
            await reader
        await until(lambda: client.restarts == 1 and client.alive)
        assert client.pid != first
        stream = client.submit(request("b", SamplingParams(max_tokens=4, ignore_eos=True)))
        assert len(await collect(stream)) == 4
        await client.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("beats", "answers", "verdict"),
    [
        ((b"\0", b"\1"), True, None),  # a slow step
        ((b"\0", b"\1"), False, "sent no message for 0.1 s"),
        ((b"\0",), False, "was busy with one step for 1 s"),
        ((), False, "gave no sign of life for 0.1 s"),
    ],
)
def test_a_long_step_is_no_silence_but_an_endless_one_is_noticed(
    beats: tuple[bytes, ...], answers: bool, verdict: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process's threads send beats during a step; the loop marks them when it comes round."""
    monkeypatch.setattr("inferno.process.watchdog.STEP_FACTOR", 10)

    async def run() -> None:
        pipe, pipe_of_process = os.pipe()
        watchdog = Watchdog(pipe, timeout=0.1, beat=0.01)
        watchdog.ask = watchdog.heard if answers else lambda: None
        killed = asyncio.Event()
        watching = asyncio.create_task(watchdog.watch(os.getpid(), killed.set))
        for i in range(250):
            if killed.is_set():
                break
            if beats:
                os.write(pipe_of_process, beats[i % len(beats)])
            await asyncio.sleep(0.005)
        watching.cancel()
        os.close(pipe_of_process)
        watchdog.close()
        assert (watchdog.verdict and watchdog.verdict.split(" for ")[0]) == (
            verdict and verdict.split(" for ")[0]
        )

    asyncio.run(run())


@pytest.mark.slow
def test_closing_fails_waiting_requests(plan: Plan) -> None:
    async def run() -> None:
        client = EngineClient(plan)
        await client.start()
        reader = asyncio.create_task(collect(client.submit(request("a"))))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(EngineDeadError, match="closed"):
            await reader

    asyncio.run(run())


def test_an_engine_that_cannot_load_says_why_with_its_traceback(plan: Plan, tmp_path: Path) -> None:
    for file in Path(plan.path).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    elsewhere = attrs.evolve(plan, path=str(tmp_path))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="truncated") as caught:
        asyncio.run(EngineClient(elsewhere).start())
    assert "Traceback" in caught.value.detail


@pytest.mark.slow
def test_a_plan_of_other_versions_is_refused(plan: Plan) -> None:
    other = attrs.evolve(
        plan, chosen=(*plan.chosen, Chosen("architecture", "X", "inferno-qwen3", "0.0.1"))
    )
    with pytest.raises(PluginError, match="inferno-qwen3 0.0.1"):
        asyncio.run(EngineClient(other).start())


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux says when a process has ended")
@pytest.mark.slow
def test_the_engine_goes_when_its_parent_is_killed(plan: Plan) -> None:
    code = """
        import asyncio
        from inferno.process.client import EngineClient
        from inferno.plan import Options, resolve

        async def main():
            client = EngineClient(resolve("demo", Options(memory="2GiB")))
            await client.start()
            print(client.pid, flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        engine = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    select.select([engine], [], [])  # readable once the engine has ended
    os.close(engine)


def test_the_engines_log_lines_are_written_by_the_client_and_name_the_model(
    plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[list[bytes]] = []

    class Socket:
        def send_multipart(self, parts: list[bytes]) -> None:
            sent.append(parts)

    logger, level = "inferno.runner", logging.WARNING
    record = logging.LogRecord(logger, level, "", 0, "%s is %d", ("it", 3), None)
    handler = ToClient(Socket())  # type: ignore[arg-type]
    thread = threading.Thread(target=handler.emit, args=(record,))
    thread.start()
    thread.join()
    assert not sent, "the socket is the engine's thread's"
    handler.send_waiting()
    named = attrs.evolve(plan, model_id="small")
    with caplog.at_level("INFO"):
        Supervisor(named, lambda *_: None, lambda _: None)._take(*sent[0])
    [line] = caplog.records
    assert (line.name, line.levelno) == (logger, level)
    assert line.getMessage() == "small: it is 3"


def test_closing_ends_an_engine_that_is_just_being_started(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not read a message."""
    monkeypatch.setattr(launch, "_COMMAND", ("sh", "-c", "exec sleep 600"))

    async def body() -> None:
        supervisor = Supervisor(plan, lambda *_: None, lambda _: None, timeout=0)
        starting = asyncio.create_task(supervisor.start())
        while supervisor.pid is None:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(supervisor.close(), 10)
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL while starting"):
            await starting
        assert not supervisor.running and not os.path.exists(f"/proc/{supervisor.pid}")

    asyncio.run(body())


@pytest.mark.slow
def test_the_process_that_checks_grammars_can_be_there_before_the_first(plan: Plan) -> None:
    if not plan.grammars:
        pytest.skip("no plugin compiles grammars")

    async def run() -> None:
        client = EngineClient(plan, expect_grammars=True)
        await client.start()
        assert client._preparing is not None
        await client._preparing
        process = client._checker._process
        assert process is not None
        await client.check(GrammarSpec(kind="regex", text="a+"))
        assert client._checker._process is process
        await client.close()
        assert process.returncode is not None
        hasty = EngineClient(plan, expect_grammars=True)
        await hasty.start()
        await hasty.close()
        assert hasty._checker._process is None

    asyncio.run(run())
