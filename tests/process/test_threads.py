"""Threads, event loops and forks: several models, and one that several threads call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.fake_engine import FakeEngine, echoes, forever, front

from inferno import LLM
from inferno.errors import EngineDeadError, InfernoError, RequestError
from inferno.plan import Options, resolve
from inferno.process import client as client_module
from inferno.process.client import EngineClient
from inferno.request.requests import EngineOutput, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import alike
from inferno.testing.tiny import run_python

PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def together(*calls: Callable[[], None]) -> None:
    """Run the calls in threads of their own, and raise the first error."""
    errors = list[BaseException]()

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@pytest.fixture(scope="module")
def loaded() -> LLM:
    pytest.importorskip("inferno_demo")
    return LLM("demo", device="cpu", memory="500MiB", packed_cache="none")


PROMPTS = ["Once upon a time", "The", "She said that he"]


def texts(llm: LLM, count: int) -> list[str]:
    return [o.outputs[0].text for o in llm.generate(PROMPTS[:count], PARAMS)]


def asks(llm: LLM, expected: list[str]) -> Callable[[], None]:
    def ask() -> None:
        for turn in range(6):
            count = 1 + turn % 3
            assert texts(llm, count) == expected[:count]
            assert "".join(d.text for d in llm.stream(PROMPTS[0], PARAMS)) == expected[0]

    return ask


def test_two_models_in_two_threads_are_right(loaded: LLM) -> None:
    expected = texts(loaded, 3)
    with LLM("demo", device="cpu", memory="500MiB", packed_cache="none") as other:
        together(asks(loaded, expected), asks(other, expected))


def test_one_model_in_three_threads_is_right(loaded: LLM) -> None:
    ask = asks(loaded, texts(loaded, 3))
    together(ask, ask, ask)


class Watchful(FakeEngine):
    """An engine that notices two steps at once."""

    inside = False

    def step(self) -> list[EngineOutput]:
        assert not self.inside, "two threads compute a step"
        self.inside = True
        time.sleep(0.001)
        outputs = super().step()
        self.inside = False
        return outputs


def test_a_short_answer_does_not_wait_for_another_thread_s_long_one() -> None:
    def script(request: Request) -> Any:
        return forever(request) if len(request.token_ids) > 5 else echoes(request)

    engine = Watchful(script)
    llm = LLM.of(engine, front(max_model_len=2000))
    began, steps = threading.Event(), dict[str, int]()

    def long() -> None:
        stream = llm.stream("a long one", SamplingParams(max_tokens=300))
        next(stream)
        began.set()
        for _ in stream:
            pass
        steps["long"] = engine.steps

    def short() -> None:
        began.wait(20)
        for _ in range(3):
            assert llm.generate("abc")[0].outputs[0].text == "abc"
        steps["short"] = engine.steps

    together(long, short)
    assert steps["short"] < steps["long"] >= 300


@pytest.mark.slow
def test_a_child_of_fork_is_told_so_and_may_close() -> None:
    pytest.importorskip("inferno_demo")
    done = run_python(
        """
import os
from inferno import LLM, SamplingParams
from inferno.errors import InfernoError
llm = LLM("demo", device="cpu", memory="500MiB", packed_cache="none")
params = SamplingParams(temperature=0, max_tokens=3)
stream = llm.stream("Once", params)
next(stream)
if (child := os.fork()) == 0:
    for call in (llm.generate, llm.chat, llm.embed, lambda prompt: next(llm.stream(prompt))):
        try:
            call("Once" if call != llm.chat else [{"role": "user", "content": "Once"}])
        except InfernoError as error:
            assert "forked after the model was loaded" in error.cause, error
            assert "spawn" in error.remedy
        else:
            raise AssertionError("it computes")
    stream.close()
    llm.close()
    raise SystemExit(7)
assert os.waitpid(child, 0)[1] >> 8 == 7
assert list(stream) and llm.generate("Once", params)
print("parent goes on")
"""
    )
    assert "parent goes on" in done.stdout, done.stderr


def test_an_engine_says_that_it_was_not_started_or_is_closed() -> None:
    async def use() -> None:
        pytest.importorskip("inferno_demo")
        client = EngineClient(resolve("demo", Options(device="cpu")))
        request = Request(id="x", token_ids=(1,))
        with pytest.raises(EngineDeadError, match="was not started\nAwait start"):
            client.submit(request)
        await client.close()
        with pytest.raises(EngineDeadError, match="was closed\nStart another"):
            client.submit(request)

    asyncio.run(use())


def test_an_engine_of_another_event_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("inferno_demo")

    class Started:
        running = alive = True

        def __init__(self, *arguments: object, **options: object) -> None: ...
        async def start(self) -> None: ...
        def send(self, kind: bytes, body: bytes) -> None: ...

    monkeypatch.setattr(client_module, "Supervisor", Started)
    client = EngineClient(resolve("demo", Options(device="cpu")))

    async def use() -> None:
        client.submit(Request(id="x", token_ids=(1,)))

    async def start() -> None:
        await client.start()
        await use()

    asyncio.run(start())
    with pytest.raises(InfernoError, match="another event loop"):
        asyncio.run(use())
    with pytest.raises(InfernoError, match="another event loop"):
        client.abort("x")


@alike
@pytest.mark.parametrize(
    ("setting", "expected"),
    [("", "20000 None"), ("GOMP_SPINCOUNT", "active None"), ("OMP_WAIT_POLICY", "None active")],
)
def test_an_llm_lets_openmp_s_threads_sleep_unless_the_user_says_otherwise(
    setting: str, expected: str
) -> None:
    done = run_python(
        """
import os, sys
os.environ.pop("GOMP_SPINCOUNT", None)
os.environ.pop("OMP_WAIT_POLICY", None)
if sys.argv[1]:
    os.environ[sys.argv[1]] = "active"
import inferno
assert "torch" not in sys.modules and os.environ.get("GOMP_SPINCOUNT") != "20000"
try:
    inferno.LLM("there is no such model")
except inferno.InfernoError:
    print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"))
""",
        setting,
    )
    assert done.stdout.split("\n")[-2] == expected, done.stderr


def test_biases_may_be_keyed_by_digits() -> None:
    assert SamplingParams(logit_bias={"4461": 100, 7: -1.5}).logit_bias == {4461: 100.0, 7: -1.5}
    for bad in ({"Paris": 1}, {1.5: 1}, {None: 1}, {3: "much"}):
        with pytest.raises(RequestError, match=repr(next(iter(bad)))) as raised:
            SamplingParams(logit_bias=bad)
        assert raised.value.param == "logit_bias"
