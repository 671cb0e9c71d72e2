"""The engine in this process: plan a step, launch it, commit the results of an earlier one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from inferno.core.drafts import DraftCost
from inferno.core.kvcache import CacheGroups
from inferno.core.scheduler import Scheduler
from inferno.core.types import EngineOutput, EngineStats, Request, Sampled, Step
from inferno.core.validation import validate_request
from inferno.errors import RequestError
from inferno.plan import Opened, Plan

Mask = Any
"""Which tokens a row may draw next: a bit per token in int32 words, as a numpy array. Bit i of word
w is token 32 w + i; tokens past the array's end are not allowed."""


class Ticket(Protocol):
    """A step in flight."""

    def draw(self, masks: Mapping[int, Mask]) -> None:
        """Draw the step's tokens, with masks by row. Called once, before the next launch."""
        ...

    def result(self) -> Sampled:
        """Wait for the results. Called once, in the order of the launches."""
        ...


class Runner(Protocol):
    """Computes steps: `runner.ModelRunner`, or a test's fake."""

    def launch(self, step: Step) -> Ticket:
        """Start the forward pass. The runner knows the tokens that earlier steps drew, even before
        their results are taken."""
        ...


class Constraint(Protocol):
    """What a request's output must match, such as a grammar. Says after each token which ones may
    follow."""

    def mask(self) -> Mask: ...
    def accept(self, token_id: int) -> None: ...


class Engine:
    """Synchronous and single-threaded: its owner calls `step` while it is `busy`.

    A step is planned and launched before the results of the `lag` steps before it are committed,
    so that a device can compute while the host plans. `load` sets no lag: on a CPU the host is the
    device, and draws on other devices still wait for their results. `constrain` returns a request's
    constraint, or None. Constrained requests take no drafts.
    """

    def __init__(
        self,
        plan: Plan,
        scheduler: Scheduler,
        runner: Runner,
        *,
        lag: int = 0,
        constrain: Callable[[Request], Constraint | None] = lambda request: None,
    ) -> None:
        self.plan = plan
        self._scheduler, self._runner = scheduler, runner
        self._lag, self._constrain = lag, constrain
        self._constraints: dict[str, Constraint] = {}
        self._in_flight: deque[tuple[Step, Ticket]] = deque()

    @classmethod
    def load(cls, opened: Opened, free: Callable[[], int] | None = None) -> Engine:
        """Load the plan's model, measure the memory it takes on a CUDA device, and allocate its
        cache. The engine's `plan` is then the measured one. Tests give `free`, which reads the free
        memory. The caller closes `opened` afterwards. Raises CheckpointError, DeviceError,
        PluginError, OutOfMemoryError."""
        from inferno.core.measure import free_memory, measure, memory_errors
        from inferno.core.runner import ModelRunner
        from inferno.loading import begin_of, capture_of, load_drafter, load_model, ops_of

        plan, free = opened.plan, free or free_memory(opened.plan.device)
        before = free() if free is not None else 0

        def start(plan: Plan, *, trial: bool = False) -> Engine:
            prefix = None if trial else opened.parts.cache_policy.build(plan.num_blocks)
            capture = None if trial else capture_of(opened)
            scheduler = scheduler_of(plan, CacheGroups.of_plan(plan, prefix))
            runner = ModelRunner(
                model, plan, ops, capture, drafter, draft_capture, begin_of(opened)
            )
            return cls(plan, scheduler, runner)

        with memory_errors(plan):
            draft = load_model(opened.draft) if opened.draft is not None else None
            model, ops = load_model(opened), ops_of(opened)
            drafter = load_drafter(opened, model, draft)
            draft_capture = capture_of(opened.draft) if opened.draft is not None else None
            if free is not None:
                layers = drafter.layers if drafter is not None else None
                models = [model] if layers is None else [model, layers]
                plan = measure(plan, models, partial(start, trial=True), free, before)
            return start(plan)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestError and changes nothing if it is invalid."""
        plan = self.plan
        validate_request(request, vocab_size=plan.vocab_size, max_model_len=plan.max_model_len)
        if self._scheduler.knows(request.id):
            raise RequestError(
                f"request id {request.id!r} is in use", "Choose another.", param="request_id"
            )
        constraint = self._constrain(request)
        if constraint is not None:
            self._constraints[request.id] = constraint
        self._scheduler.add(request, takes_drafts=constraint is None)

    def abort(self, request_id: str) -> None:
        """Drop a request. An unknown or finished one is ignored."""
        self._scheduler.abort(request_id)
        self._constraints.pop(request_id, None)

    def step(self) -> list[EngineOutput]:
        """Launch the next step, and return the outputs of the one `lag` steps before it."""
        try:
            return self._step()
        except BaseException:  # its owner may go on: with Ctrl-C, or after an error
            self._in_flight.clear()
            self._scheduler.drop_in_flight()
            raise

    def _step(self) -> list[EngineOutput]:
        step, outputs = self._scheduler.plan(), list[EngineOutput]()
        if not step.is_empty:
            ticket = self._runner.launch(step)
            masks: Mapping[int, Mask] = {}
            if self._constraints:
                outputs, masks = self._masks(step)
            ticket.draw(masks)
            self._in_flight.append((step, ticket))
        if len(self._in_flight) > (0 if step.is_empty else self._lag):
            outputs += self._commit()
        return outputs

    def _masks(self, step: Step) -> tuple[list[EngineOutput], dict[int, Mask]]:
        """Return the masks of a launched step, by row. They depend on the tokens before it, so the
        steps in flight are committed first, and their outputs are returned too."""
        request_of = self._scheduler.request_of
        ids = {s.row: request_of(s.row).id for s in step.slices if s.samples}
        outputs = list[EngineOutput]()
        if self._constraints.keys() & ids.values():
            while self._in_flight:
                outputs += self._commit()
        held = self._constraints
        return outputs, {row: held[id].mask() for row, id in ids.items() if id in held}

    def _commit(self) -> list[EngineOutput]:
        step, ticket = self._in_flight.popleft()
        outputs = self._scheduler.commit(step, ticket.result())
        if self._constraints:
            for output in outputs:
                if (constraint := self._constraints.get(output.request_id)) is None:
                    continue
                if output.finish is not None:
                    del self._constraints[output.request_id]
                elif output.token_id is not None:
                    constraint.accept(output.token_id)
        return outputs

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return self._scheduler.busy

    def stats(self) -> EngineStats:
        return self._scheduler.stats

    def check(self) -> None:
        """Check the scheduler's invariants, for tests."""
        self._scheduler.check()

    def close(self) -> None:
        """Free the model and its cache. The engine cannot be used again."""
        self._runner = _Closed()
        self._in_flight.clear()
        self._scheduler.drop_in_flight()


class _Closed:
    def launch(self, step: Step) -> Ticket:
        raise RequestError("the engine is closed", "Load another one.")


def scheduler_of(plan: Plan, groups: CacheGroups) -> Scheduler:
    drafts = None
    if (speculation := plan.speculation) is not None:
        drafts = DraftCost(most=speculation.num_drafts, propose=speculation.propose_cost)
    return Scheduler(
        groups,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        drafts=drafts,
    )
