"""Engines that share a mixture's experts, in threads of this process: they run what engines in
processes run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest
from attrs import define, evolve, field

from inferno import host
from inferno.catalog import Catalog
from inferno.core.engine import Engine
from inferno.plan import Plan, open_model, plan_of_engine
from inferno.process.engines.together import Together
from inferno.process.ranks.engine import load_engine
from inferno.request.requests import EngineOutput, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.thread_ranks import ThreadRanks
from inferno.testing.tiny import small_options


@define(eq=False)
class ThreadEngines:
    """The engines, and what each computes its steps with."""

    engines: list[Engine]
    together: list[Together]
    threads: ThreadRanks
    """The communicators by which they exchange tensors."""
    begun: list[int] = field(factory=list)
    """How many requests of the latest call each engine got."""

    @classmethod
    def load(
        cls,
        path: str | Path,
        catalog: Catalog,
        count: int = 2,
        plan: Callable[[Plan], Plan] = lambda plan: plan,
        **options: Any,
    ) -> Self:
        """Load a model. Its limits are those of `load_toy`. `plan` changes its plan."""
        settings = small_options({"device": "cpu", **options, "dp": count, "ep": True})
        threads = ThreadRanks(count, catalog)
        together = [Together(threads.communicator) for _ in range(count)]
        with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
            patch.setattr(host, "usable_cores", lambda: count)
            with open_model(str(path), settings, catalog) as opened:
                whole = plan(opened.plan)

                def loaded(engine: int) -> Engine:
                    own = plan_of_engine(whole, engine, folder)
                    try:
                        return load_engine(evolve(opened, plan=own), together=together[engine])
                    except BaseException:
                        threads.abort()
                        raise

                with ThreadPoolExecutor(count) as pool:
                    engines = [*pool.map(loaded, range(count))]
        return cls(engines, together, threads)

    @property
    def plan(self) -> Plan:
        """The plan of the first engine."""
        return self.engines[0].plan

    def answers(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams
    ) -> list[list[EngineOutput]]:
        """Return the outputs for each prompt. All run at once, and engines get them in turn. Checks
        the schedulers after every step."""
        outputs: list[list[EngineOutput]] = [[] for _ in prompts]
        ended, count = threading.Event(), len(self.engines)
        self.begun = [len(prompts[i::count]) for i in range(count)]
        for i, prompt in enumerate(prompts):
            request = Request(id=str(i), token_ids=tuple(prompt), params=params)
            self.engines[i % count].submit(request)

        def run(number: int) -> None:
            engine, others = self.engines[number], self.together[number]
            while not ended.is_set() or engine.busy or others.owes:
                rounds = others.rounds
                for output in engine.step(naps=False) if engine.busy else ():
                    assert not output.error, output.error
                    outputs[int(output.request_id)].append(output)
                engine.check()
                if all(each and each[-1].finish for each in outputs):
                    ended.set()
                if others.rounds != rounds:
                    continue
                if others.owes:
                    others.attend()
                else:
                    time.sleep(0.001)

        def running(number: int) -> None:
            try:
                run(number)
            except BaseException:
                ended.set()
                self.threads.abort()
                raise

        with ThreadPoolExecutor(count) as pool:
            for each in [pool.submit(running, i) for i in range(count)]:
                each.result()
        return outputs

    def close(self) -> None:
        for engine, others in zip(self.engines, self.together, strict=True):
            with suppress(Exception):
                others.close()
            engine.close()
