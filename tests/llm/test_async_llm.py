import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fake_engine import FakeClient, FakeEngine, Script, echoes, forever, front, says

from inferno.errors import CheckpointError, EngineDeadError, RequestError
from inferno.llm import AsyncLLM, TextDelta
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Opened, Plan
from inferno.request.sampling_params import SamplingParams

LONG = SamplingParams(max_tokens=90)


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 20))


def made(script: Script) -> tuple[AsyncLLM, FakeClient]:
    client = FakeClient(FakeEngine(script))
    return AsyncLLM.of(client, front()), client


async def read(llm: AsyncLLM, prompt: str, params: SamplingParams = LONG) -> list[TextDelta]:
    return [d async for deltas in llm.stream(prompt, params) for d in deltas]


def test_many_streams_at_once_give_each_its_own_answer() -> None:
    async def body() -> None:
        llm, _ = made(echoes)
        prompts = [f"prompt {i}" for i in range(20)]
        answers = await asyncio.gather(*(read(llm, p) for p in prompts))
        assert ["".join(d.text for d in a) for a in answers] == prompts
        assert all(a[-1].finish_reason == "stop" for a in answers)

    run(body())


def test_n_outputs_interleave_and_each_ends_once() -> None:
    async def body() -> None:
        llm, _ = made(lambda r: [*r.token_ids[: (r.params.seed or 0) + 1], 256])
        deltas = await read(llm, "abcdef", SamplingParams(n=4, seed=0, max_tokens=90))
        texts = ["".join(d.text for d in deltas if d.index == i) for i in range(4)]
        assert texts == ["a", "ab", "abc", "abcd"]
        assert sorted(d.index for d in deltas if d.finish_reason) == [0, 1, 2, 3]

    run(body())


def test_generate_and_chat_collect_the_whole_answer() -> None:
    async def body() -> None:
        llm, _ = made(echoes)
        output = await llm.generate("hi", SamplingParams(n=2, max_tokens=9))
        assert [o.text for o in output.outputs] == ["hi", "hi"]
        assert output.prompt == "hi"
        talk = await llm.chat([{"role": "user", "content": "yo"}], LONG)
        assert talk.outputs[0].text == "user:yo;>"

    run(body())


@pytest.mark.parametrize("n", [1, 3])
def test_cancelling_the_reader_aborts_the_request(n: int) -> None:
    async def body() -> None:
        llm, client = made(forever)
        task = asyncio.create_task(llm.generate("hi", SamplingParams(n=n, max_tokens=90)))
        while client.engine.steps < 3:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not client.engine.busy
        assert sorted(client.engine.aborted) == sorted(r.id for r in client.engine.submitted)

    run(body())


@pytest.mark.parametrize("n", [1, 3])
def test_closing_the_stream_aborts_the_request(n: int) -> None:
    async def body() -> None:
        llm, client = made(forever)
        stream = llm.stream("hi", SamplingParams(n=n, max_tokens=90))
        await anext(stream)
        await stream.aclose()
        assert not client.engine.busy

    run(body())


@pytest.mark.parametrize("n", [1, 3])
def test_aborting_ends_the_stream_normally(n: int) -> None:
    async def body() -> None:
        llm, client = made(forever)
        deltas: list[TextDelta] = []
        async for some in llm.stream("hi", SamplingParams(n=n, max_tokens=90), request_id="mine"):
            deltas += some
            llm.abort("mine")
        assert [d.finish_reason for d in deltas if d.finish_reason] == ["abort"] * n
        assert not client.engine.busy
        llm.abort("mine")

    run(body())


def test_several_prompts_are_one_stream_numbered_over_all_of_them() -> None:
    async def body() -> None:
        llm, client = made(echoes)
        stream = llm.stream_all(["ab", "cde", "f"], SamplingParams(n=2, max_tokens=90))
        deltas = [d async for some in stream for d in some]
        answers = ["".join(d.text for d in deltas if d.index == i) for i in range(6)]
        assert answers == ["ab", "ab", "cde", "cde", "f", "f"]
        assert sorted(d.index for d in deltas if d.finish_reason) == list(range(6))
        assert len({r.id for r in client.engine.submitted}) == 6

    run(body())


def test_several_prompts_are_aborted_by_their_one_id() -> None:
    async def body() -> None:
        llm, client = made(forever)
        deltas: list[TextDelta] = []
        async for some in llm.stream_all(["a", "b"], LONG, request_id="mine"):
            deltas += some
            llm.abort("mine")
        assert [d.finish_reason for d in deltas if d.finish_reason] == ["abort"] * 2
        assert not client.engine.busy

    run(body())


def test_one_invalid_prompt_of_several_is_refused_before_any_runs() -> None:
    async def body() -> None:
        llm, client = made(forever)
        with pytest.raises(RequestError, match="empty"):
            llm.stream_all(["a", []], LONG)
        assert not client.engine.submitted

    run(body())


def test_a_stop_string_aborts_only_its_own_output() -> None:
    async def body() -> None:
        llm, client = made(
            lambda r: says("a-long-answer")(r) if r.params.seed == 1 else says("axle")(r)
        )
        deltas = await read(llm, "hi", SamplingParams(n=2, seed=0, stop=["x"], max_tokens=90))
        texts = ["".join(d.text for d in deltas if d.index == i) for i in range(2)]
        assert texts == ["a", "a-long-answer"]
        assert client.engine.aborted == [client.engine.submitted[0].id]

    run(body())


@pytest.mark.parametrize("n", [1, 3])
def test_a_dead_engine_raises_and_later_requests_work(n: int) -> None:
    async def body() -> None:
        llm, client = made(forever)
        stream = llm.stream("hi", SamplingParams(n=n, max_tokens=90))
        await anext(stream)
        client.dies()
        with pytest.raises(EngineDeadError):
            async for _ in stream:
                pass
        assert (await read(llm, "hi", SamplingParams(max_tokens=2)))[-1].finish_reason == "length"

    run(body())


def test_a_slow_reader_gets_longer_lists_not_more() -> None:
    async def body() -> None:
        llm, _ = made(echoes)
        lists = []
        async for deltas in llm.stream("x" * 40, SamplingParams(n=2, max_tokens=50)):
            lists.append(deltas)
            for _ in range(100):
                await asyncio.sleep(0)
        assert len(lists) <= 3
        assert "".join(d.text for some in lists for d in some if d.index == 0) == "x" * 40

    run(body())


def test_bad_requests_are_refused_before_the_stream_is_read() -> None:
    async def body() -> None:
        llm, client = made(echoes)
        with pytest.raises(RequestError):
            llm.stream("")
        stream = llm.stream("hi", LONG, request_id="mine")
        await anext(stream)
        with pytest.raises(RequestError, match="in use"):
            llm.stream("ho", LONG, request_id="mine")
        await stream.aclose()
        assert len(client.engine.submitted) == 1

    run(body())


def test_priority_and_salt_reach_the_engine() -> None:
    async def body() -> None:
        llm, client = made(echoes)
        await llm.generate("hi", LONG, priority=3, cache_salt="team")
        assert (client.engine.submitted[0].priority, client.engine.submitted[0].cache_salt) == (
            3,
            "team",
        )

    run(body())


def test_the_engine_lives_as_long_as_the_context() -> None:
    async def body() -> None:
        llm, client = made(echoes)
        alive = [llm.alive]
        async with llm:
            alive.append(llm.alive)
            assert llm.model_id == "fake"
        assert alive == [False, True]
        assert not client.alive

    run(body())


def test_importing_llm_imports_no_torch() -> None:
    code = (
        "import sys, inferno.llm; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class FakeCheckpoint:
    def close(self) -> None: ...


FAKE = Opened(
    plan=cast(Plan, SimpleNamespace(model_id="fake", media=(), engines=None)),
    parts=cast(Any, None),
    config=cast(Any, None),
    checkpoint=cast(Any, FakeCheckpoint()),
)


def test_the_tokenizer_is_read_beside_the_engine_and_its_failure_ends_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        client = FakeClient(FakeEngine(echoes))
        monkeypatch.setattr("inferno.process.engines.opening.EngineClient", lambda *_, **__: client)
        opened: list[bool] = []

        def fails(model: Opened, chat_template: str | None) -> Preprocessor:
            opened.append(client.alive)
            raise CheckpointError("tokenizer.json cannot be read", "Fetch it again.")

        monkeypatch.setattr(Preprocessor, "open", fails)
        llm = AsyncLLM.of_opened(FAKE)
        assert not opened
        with pytest.raises(CheckpointError, match="tokenizer.json"):
            await llm.start()
        assert len(opened) == 1
        assert client.closed

    run(body())


def test_the_tokenizer_can_be_used_before_the_engine_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        opened: list[str | None] = []

        def open_front(model: Opened, template: str | None) -> Preprocessor:
            opened.append(template)
            return front()

        monkeypatch.setattr(Preprocessor, "open", open_front)
        llm = AsyncLLM.of_opened(FAKE, "a template")
        assert llm.preprocessor.encode_prompt("hi") == front().encode_prompt("hi")
        llm._client = FakeClient(FakeEngine(echoes))
        async with llm:
            assert (await llm.generate("hi", LONG)).outputs[0].text == "hi"
        assert opened == ["a template"]

    run(body())
