"""Several models behind one port: loaded on demand, unloaded when they are idle or in the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.model_fakes import GIB, FakeModel, models_of

from inferno.errors import (
    CheckpointError,
    InfernoError,
    ModelNotFoundError,
    ModelUnavailableError,
    OutOfMemoryError,
    ShuttingDownError,
)
from inferno.server.hosting.hosted_model import BACK_OFF, LoadState
from inferno.server.hosting.models import Models


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(work: Any) -> Any:
    return asyncio.run(work)


def states(models: Models) -> dict[str, str]:
    return {hosted.name: hosted.status for hosted in models.hosted}


def _starting(models: Models) -> bool:
    return models.starting


async def use(models: Models, name: str | None) -> str:
    async with models.lease(name) as model:
        return model.llm.model_id


def test_a_model_is_loaded_by_its_first_request_and_stays() -> None:
    async def work() -> None:
        a, b = FakeModel("a"), FakeModel("b", aliases=("bee",))
        models = models_of(a, b)
        assert states(models) == {"a": "unloaded", "b": "unloaded"}
        assert [await use(models, name) for name in ("bee", "b", None)] == ["b", "b", "a"]
        assert (len(a.made), len(b.made)) == (1, 1)
        assert states(models) == {"a": "loaded", "b": "loaded"}

    run(work())


def test_requests_for_a_model_wait_for_one_load() -> None:
    async def work() -> None:
        a = FakeModel("a", gate=asyncio.Event())
        models = models_of(a)
        waiting = [asyncio.create_task(use(models, "a")) for _ in range(20)]
        while not a.made:
            await asyncio.sleep(0.001)
        assert states(models) == {"a": "loading"}
        assert not any(task.done() for task in waiting)
        assert a.gate is not None
        a.gate.set()
        assert await asyncio.gather(*waiting) == ["a"] * 20
        assert len(a.made) == 1

    run(work())


def test_a_request_whose_client_is_gone_does_not_stop_the_load() -> None:
    async def work() -> None:
        a = FakeModel("a", gate=asyncio.Event())
        models = models_of(a)
        gone, stays = (asyncio.create_task(use(models, "a")) for _ in range(2))
        while not a.made:
            await asyncio.sleep(0.001)
        gone.cancel()
        assert a.gate is not None
        a.gate.set()
        assert await stays == "a"
        assert models.hosted[0].waiting == models.hosted[0].leases == 0

    run(work())


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (CheckpointError("torn", "Download it again."), ModelUnavailableError, 503),
        (ModelNotFoundError("no such model", "Look again."), ModelNotFoundError, 404),
    ],
)
def test_a_load_that_fails_says_why_and_is_not_repeated_at_once(
    error: InfernoError, kind: type[InfernoError], status: int
) -> None:
    async def work() -> None:
        clock = Clock()
        a = FakeModel("a", error=error)
        models = models_of(a, clock=clock)
        errors = await asyncio.gather(*(use(models, "a") for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in errors] == [kind] * 3
        assert states(models) == {"a": "failed"}
        for _ in range(3):
            with pytest.raises(kind, match=error.cause) as caught:
                await use(models, "a")
            assert caught.value.status == status
            assert caught.value.headers["Retry-After"] == str(int(BACK_OFF))
        assert len(a.made) == 1 and a.made[0].is_closed
        clock.now += BACK_OFF
        with pytest.raises(kind) as caught:
            await use(models, "a")
        assert len(a.made) == 2
        assert caught.value.headers["Retry-After"] == str(int(2 * BACK_OFF))
        a.error = None
        await models.load(models.hosted[0])  # asked for: at once
        assert await use(models, "a") == "a"

    run(work())


def test_the_least_recently_used_idle_model_makes_room() -> None:
    async def work() -> None:
        clock = Clock()
        a, b, c, d = (FakeModel(name, pin=name == "a") for name in "abcd")
        models = models_of(a, b, c, d, clock=clock, budgets={"cpu": 3 * GIB})
        for name in "abcab":  # c is now the one that was used longest ago
            clock.now += 1
            await use(models, name)
        assert await use(models, "d") == "d"
        assert states(models) == {
            "a": "loaded",
            "b": "loaded",
            "c": "unloaded",
            "d": "loaded",
        }
        assert c.made[0].is_closed and not c.running

    run(work())


def test_a_model_in_use_or_pinned_does_not_make_room() -> None:
    async def work() -> None:
        a, b, c = FakeModel("a", pin=True), FakeModel("b"), FakeModel("c")
        models = models_of(a, b, c, budgets={"cpu": 2 * GIB})
        await use(models, "a")
        async with models.lease("b"):
            with pytest.raises(ModelUnavailableError, match="needs 1.0 GiB on cpu") as caught:
                await use(models, "c")
            assert "a 1.0 GiB (pinned), b 1.0 GiB (in use)" in caught.value.cause
            assert "inferno unload" in caught.value.remedy
            assert states(models) == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        assert await use(models, "c") == "c"

    run(work())


def test_a_model_larger_than_the_budget_is_refused_and_unloads_nothing() -> None:
    async def work() -> None:
        models = models_of(FakeModel("a", nbytes=3 * GIB), FakeModel("b"), budgets={"cpu": 2 * GIB})
        await use(models, "b")
        with pytest.raises(ModelUnavailableError, match="3.0 GiB") as caught:
            await use(models, "a")
        assert "Give the model less `memory`" in caught.value.remedy
        assert caught.value.headers["x-should-retry"] == "false"
        assert states(models) == {"a": "unloaded", "b": "loaded"}

    run(work())


def test_the_number_of_loaded_models_can_be_limited() -> None:
    async def work() -> None:
        models = models_of(*map(FakeModel, "abc"), max_loaded=1)
        for name in "abcba":
            assert await use(models, name) == name
            assert list(states(models).values()).count("loaded") == 1
        assert sorted(await asyncio.gather(*(use(models, n) for n in "abcabc"))) == list("aabbcc")

    run(work())


def test_a_plan_that_finds_a_gpu_full_unloads_what_is_idle_on_gpus() -> None:
    async def work() -> None:
        a = FakeModel("a", device="cuda:0")
        b = FakeModel("b", device="cuda:0", crowded_by=a)
        models = models_of(a, b)
        await use(models, "a")
        assert await use(models, "b") == "b"
        assert states(models) == {"a": "unloaded", "b": "loaded"}
        a.plan_error = OutOfMemoryError("too large", "Lower it.")
        with pytest.raises(ModelUnavailableError, match="too large"):
            await use(models, "a")

    run(work())


def test_a_model_is_unloaded_after_its_idle_time() -> None:
    async def work() -> None:
        clock = Clock()
        a, b = FakeModel("a", idle_seconds=10), FakeModel("b", idle_seconds=10, pin=True)
        models = models_of(a, b, clock=clock)
        await use(models, "b")
        async with models.lease("a"):
            clock.now = 100
            await models.unload_idle()
            assert states(models) == {"a": "loaded", "b": "loaded"}
        clock.now = 109
        await models.unload_idle()
        assert states(models)["a"] == "loaded"
        clock.now = 110
        await models.unload_idle()
        assert states(models) == {"a": "unloaded", "b": "loaded"}
        assert await use(models, "a") == "a"

    run(work())


def test_unloading_waits_for_requests_and_later_ones_load_again() -> None:
    async def work() -> None:
        a = FakeModel("a")
        models = models_of(a)
        hosted = models.hosted[0]
        async with models.lease("a") as model:
            unloading = asyncio.create_task(models.unload(hosted))
            await asyncio.sleep(0.01)
            later = asyncio.create_task(use(models, "a"))
            await asyncio.sleep(0.01)
            assert states(models) == {"a": "unloading"}
            assert model.llm.alive and not later.done()
        await unloading
        assert await later == "a"
        assert len(a.made) == 2 and a.made[0].is_closed

    run(work())


def test_each_models_start_and_the_servers_end() -> None:
    async def work() -> None:
        a, b, c = FakeModel("a", preload=True), FakeModel("b"), FakeModel("c", preload=True)
        c.plan_error = CheckpointError("torn", "Download it again.")
        models = models_of(a, b, c)
        async with models.running():
            while _starting(models):
                await asyncio.sleep(0.001)
            assert states(models) == {"a": "loaded", "b": "unloaded", "c": "failed"}
        assert not a.running
        with pytest.raises(ShuttingDownError):
            await use(models, "b")

    run(work())


def test_a_server_that_stops_while_a_model_loads_leaves_no_engine() -> None:
    async def work() -> None:
        a = FakeModel("a", gate=asyncio.Event())
        models = models_of(a)
        async with models.running():
            waiting = asyncio.create_task(use(models, "a"))
            while not a.running:
                await asyncio.sleep(0.001)
        with pytest.raises(ShuttingDownError):
            await waiting
        assert a.made[0].is_closed and models.hosted[0].state is not LoadState.LOADING

    run(work())
