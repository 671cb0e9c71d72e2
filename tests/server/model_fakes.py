"""Models that load when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from attrs import define, field
from tests.server.server_fakes import FakeLLM

from inferno.errors import OutOfMemoryError
from inferno.llm import AsyncLLM
from inferno.server.access.limiter import Limiter
from inferno.server.generate.pipeline import Pipeline
from inferno.server.hosting.hosted_model import HostedModel, ModelSpec
from inferno.server.hosting.models import Models
from inferno.server.hosting.served_model import ServedModel
from inferno.server.observe.metrics import Metrics

GIB = 2**30


def fake_plan(nbytes: int, device: str = "cpu") -> Any:
    return SimpleNamespace(
        store=None,
        queue_policy="first-come",
        sandbox=None,
        grammars=(),
        max_num_seqs=4,
        sessions=None,
        device=SimpleNamespace(torch_name=device),
        nbytes=nbytes,
        memory=(SimpleNamespace(nbytes=nbytes),),
    )


@define(eq=False)
class LoadableLLM(FakeLLM):
    """A fake whose start waits for `gate`, if it has one, and fails with `error`."""

    gate: asyncio.Event | None = None
    error: Exception | None = None
    is_closed: bool = False

    async def start(self) -> None:
        await super().start()
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        await asyncio.sleep(0)
        await super().close()
        self.is_closed, self.alive = True, False


@define(eq=False)
class FakeModel:
    """What a server may load: remembers each LLM that was made for it."""

    name: str
    nbytes: int = GIB
    aliases: tuple[str, ...] = ()
    pin: bool = False
    idle_seconds: float | None = None
    preload: bool = False
    device: str = "cpu"
    gate: asyncio.Event | None = None
    error: Exception | None = None
    plan_error: Exception | None = None
    crowded_by: FakeModel | None = None
    """There is no memory for a plan while this one runs."""
    options: dict[str, Any] = field(factory=dict)
    """Of the LLM."""
    made: list[LoadableLLM] = field(factory=list)

    def make(self) -> AsyncLLM:
        if self.plan_error is not None:
            raise self.plan_error
        if self.crowded_by is not None and self.crowded_by.running:
            raise OutOfMemoryError("8 GiB were asked for, but 2 GiB are free", "Lower it.")
        llm = LoadableLLM(
            model_id=self.name,
            reply=f"I am {self.name}",
            plan=fake_plan(self.nbytes, self.device),
            gate=self.gate,
            error=self.error,
            **self.options,
        )
        self.made.append(llm)
        return cast(AsyncLLM, llm)

    @property
    def running(self) -> list[LoadableLLM]:
        """Its engines that were started and not closed."""
        return [llm for llm in self.made if llm.started]

    def spec(self) -> ModelSpec:
        return ModelSpec(
            names=(self.name, *self.aliases),
            make=self.make,
            ref=f"ref/{self.name}",
            pin=self.pin,
            idle_seconds=self.idle_seconds,
            preload=self.preload,
        )


def models_of(
    *models: FakeModel, clock: Callable[[], float] = lambda: 0.0, **options: Any
) -> Models:
    """The models without an app."""
    metrics = Metrics(lambda: ())

    def serve(hosted: HostedModel, llm: AsyncLLM) -> ServedModel:
        pipeline = Pipeline(llm, Limiter(), metrics.of(hosted.name))
        return ServedModel(pipeline, hosted.spec.names, ("reasoning",))

    return Models([HostedModel(model.spec(), clock) for model in models], serve, **options)
