"""The engine in this process: one loop of three calls."""

from __future__ import annotations

from typing import Protocol

from inferno.core.kvcache import CacheGroups
from inferno.core.scheduler import Scheduler
from inferno.core.types import EngineOutput, EngineStats, Request, Sampled, Step
from inferno.core.validation import validate_request
from inferno.errors import RequestError
from inferno.plan import Opened, Plan


class Runner(Protocol):
    """Computes a step: `runner.ModelRunner`, or a test's fake."""

    def run(self, step: Step) -> Sampled: ...


class Engine:
    """Synchronous and single-threaded: its owner calls `step` while it is `busy`."""

    def __init__(self, plan: Plan, scheduler: Scheduler, runner: Runner) -> None:
        self.plan = plan
        self._scheduler, self._runner = scheduler, runner

    @classmethod
    def load(cls, opened: Opened) -> Engine:
        """Load the plan's model and allocate its cache. The caller closes `opened` afterwards.
        Raises CheckpointError, PluginError, OutOfMemoryError."""
        from inferno.core.runner import ModelRunner
        from inferno.loading import capture_of, load_model, ops_of

        plan = opened.plan
        groups = CacheGroups.of_plan(plan, opened.parts.cache_policy.build(plan.num_blocks))
        runner = ModelRunner(load_model(opened), plan, ops_of(opened), capture_of(opened))
        return cls(plan, scheduler_of(plan, groups), runner)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestError and changes nothing if it is invalid."""
        plan = self.plan
        validate_request(request, vocab_size=plan.vocab_size, max_model_len=plan.max_model_len)
        if self._scheduler.knows(request.id):
            raise RequestError(
                f"request id {request.id!r} is in use", "Choose another.", param="request_id"
            )
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Drop a request. An unknown or finished one is ignored."""
        self._scheduler.abort(request_id)

    def step(self) -> list[EngineOutput]:
        step = self._scheduler.plan()
        if not step.slices:
            return []
        sampled = self._runner.run(step)
        return self._scheduler.commit(step, sampled)

    @property
    def busy(self) -> bool:
        return self._scheduler.busy

    def stats(self) -> EngineStats:
        return self._scheduler.stats

    def check(self) -> None:
        """The scheduler's invariants, for tests."""
        self._scheduler.check()

    def close(self) -> None:
        """Free the model and its cache. The engine cannot be used again."""
        self._runner = _Closed()


class _Closed:
    def run(self, step: Step) -> Sampled:
        raise RequestError("the engine is closed", "Load another one.")


def scheduler_of(plan: Plan, groups: CacheGroups) -> Scheduler:
    return Scheduler(
        groups,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
    )
