"""The engine of an `LLM`: in this process, or several in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from attrs import evolve

from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Opened
from inferno.request.requests import EngineOutput, Request
from inferno.request.sessions import SessionView


class Sessions(Protocol):
    """What `LLM` needs of `inferno.stores.NoSessions`."""

    def views(self, owner: str, name: str | None = None, limit: int = 1) -> list[SessionView]: ...
    def end(self, owner: str, name: str) -> list[SessionView]: ...


class StepEngine(Protocol):
    """What `LLM` needs of `inferno.core.engine.Engine`."""

    def submit(self, request: Request) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def step(self) -> list[EngineOutput]: ...
    @property
    def busy(self) -> bool: ...
    @property
    def sessions(self) -> Sessions: ...
    def close(self) -> None: ...


class SleepingEngine(StepEngine, Protocol):
    """An engine that can sleep."""

    asleep: bool
    weight_version: str
    unfinished: list[str]

    def sleep(self, level: int) -> None: ...
    def wake_up(self, *, cache: bool) -> None: ...
    def update_weights(
        self, path: Path, version: str | None = None, *, temporary: bool = False
    ) -> str: ...


def in_own_processes(opened: Opened, chat_template: str | None) -> tuple[StepEngine, Preprocessor]:
    """Start the plan's engines, each in a separate process, and load the preprocessor."""
    from inferno.process.blocking import BlockingClient

    # Callers wait for whole answers.
    engine = BlockingClient(evolve(opened.plan, max_step_time=0.0))
    try:
        preprocessor = Preprocessor.open(opened, chat_template)
        plan = engine.wait_until_ready()
    except BaseException:
        engine.close()
        raise
    return engine, evolve(preprocessor, max_model_len=plan.max_model_len)
