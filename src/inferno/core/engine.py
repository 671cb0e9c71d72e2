"""The engine in this process: plan a step, launch it, commit the results of an earlier one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from time import perf_counter
from typing import Protocol

from attrs import evolve

from inferno.constraints import NO_MASKS, Constraint, Constraints, Drafts, Grammars, Masks, follow
from inferno.core.kvcache import CacheGroups
from inferno.core.schedule.scheduler import Scheduler
from inferno.core.types import Sampled, Step
from inferno.errors import InfernoError, RequestError
from inferno.host import give_memory_back
from inferno.plan import Opened, Plan
from inferno.plan.draft_cost import DraftCost
from inferno.request.requests import EngineOutput, EngineStats, FinishReason, Request
from inferno.request.validation import validate_request
from inferno.stores import NO_PRESENCE, NO_STORE, NoPresence, NoStore, open_presence, open_store
from inferno.weights.packing import PackedWeights

log = logging.getLogger("inferno.engine")


class Ticket(Protocol):
    """A step in flight."""

    def draw(self, masks: Masks) -> None:
        """Draw the step's tokens under masks. Called once, before the next launch."""
        ...

    def result(self) -> Sampled:
        """Wait for the results. Called once, in the order of the launches."""
        ...


class Runner(Protocol):
    """Computes steps: `runner.ModelRunner`, or a test's fake."""

    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> Ticket:
        """Start the forward pass. The runner knows the tokens that earlier steps drew, even before
        their results are taken. `cut` is called before it with the step's drafts, and returns those
        to verify."""
        ...


class Engine:
    """Synchronous and single-threaded: its owner calls `step` while it is `busy`.

    A step is planned and launched before the results of the `lag` steps before it are committed,
    so that a device can compute while the host plans. `load` sets a lag of one step on devices
    whose draws need not wait, and none on a CPU: there the host is the device. `constrain` reads
    a request's adapter, and returns its constraint, or None; it may take long, and is then called
    in a thread. `forget` forgets all adapters but those of these digests. `clock` returns seconds:
    it tells what steps cost.
    """

    def __init__(
        self,
        plan: Plan,
        scheduler: Scheduler,
        runner: Runner,
        *,
        lag: int = 0,
        store: NoStore = NO_STORE,
        presence: NoPresence = NO_PRESENCE,
        constrain: Callable[[Request], Constraint | None] = lambda request: None,
        forget: Callable[[Collection[str]], None] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.plan, self.clock = plan, clock
        self._scheduler, self._runner = scheduler, runner
        self._lag, self._store, self._presence = lag, store, presence
        self._constrain, self._forget = constrain, forget
        self._constraints = Constraints(plan.vocab_size, looks=not lag)
        self._compiling: dict[str, Request] = {}
        self._in_flight: deque[tuple[Step, Ticket, float]] = deque()
        """Steps with their tickets and the times at which they were launched."""
        self._committed = 0.0

    @classmethod
    def load(
        cls,
        opened: Opened,
        free: Callable[[], int] | None = None,
        packed: PackedWeights | None = None,
        streams: bool = False,
    ) -> Engine:
        """Load the plan's model, its matrices from `packed` if they are there, measure the memory
        it takes on a CUDA device, and allocate its cache. The engine's `plan` is then the measured
        one. With `streams`, callers wait for each token, so steps are bounded in time too. Tests
        give `free`, which reads the free memory. The caller closes `opened` afterwards.
        Raises CheckpointError, DeviceError, PluginError, OutOfMemoryError."""
        from inferno.core.runner import ModelRunner
        from inferno.device import device_errors
        from inferno.weights.adapters import Adapters
        from inferno.weights.loading import begin_of, capture_of, load_drafter, load_model, ops_of
        from inferno.weights.measure import free_memory, measure

        grammars = Grammars.of(opened)

        def constrain(request: Request) -> Constraint | None:
            if request.adapter is not None and adapters is not None:
                adapters.read(request.adapter)
            return grammars.constraint_of(request.params)

        plan, free = opened.plan, free or free_memory(opened.plan.device)
        before = free() if free is not None else 0

        def start(plan: Plan, *, trial: bool = False) -> tuple[Engine, ModelRunner]:
            prefix = None if trial else opened.parts.cache_policy.build(plan.num_blocks)
            captures = not trial or (plan.capture is not None and plan.capture.ahead)
            capture = capture_of(opened) if captures else None
            draft = opened.draft if captures else None
            draft_capture = capture_of(draft) if draft is not None else None
            groups = CacheGroups.of_plan(plan, prefix)
            others = begin_of(opened, plan), opened.parts.logits_processors
            drafts = drafter, draft_capture
            runner = ModelRunner(model, plan, ops, capture, *drafts, *others, adapters=adapters)
            store = NO_STORE if trial else open_store(opened, plan, groups, runner.cache.places)
            runner.mover = store.mover
            engine = cls(
                plan,
                scheduler_of(plan, groups, runner.verify_cost(), store, streams and not trial),
                runner,
                lag=1 if runner.overlaps else 0,
                store=store,
                presence=NO_PRESENCE if trial else open_presence(opened, plan, groups, store),
                constrain=constrain,
                forget=None if adapters is None else adapters.keep,
            )
            return engine, runner

        with device_errors(plan.device):
            drafting = load_model(opened.draft) if opened.draft is not None else None
            model, ops = load_model(opened, packed), ops_of(opened)
            drafter = load_drafter(opened, model, drafting)
            adapters = Adapters.of(opened, model, ops)
            if free is not None:
                layers = drafter.layers if drafter is not None else None
                models = [model] if layers is None else [model, layers]
                plan = measure(plan, models, partial(start, trial=True), free, before)
            engine, runner = start(plan)
            runner.capture_ahead()
            return engine

    def submit(self, request: Request, *, wait: bool = True) -> None:
        """Queue a request. Raises RequestError or GrammarError and changes nothing if it is
        invalid. Without `wait` its grammar is compiled and its adapter read in a thread, and an
        error in them is an output of a later step. A request with an adapter and no tokens ends
        with such an output once its adapter is read."""
        plan, reads = self.plan, request.adapter is not None and not request.token_ids
        if not reads:
            validate_request(request, vocab_size=plan.vocab_size, max_model_len=plan.max_model_len)
        if self._scheduler.knows(request.id) or request.id in self._compiling:
            raise RequestError(
                f"request id {request.id!r} is in use", "Choose another.", param="request_id"
            )
        if request.adapter is not None:
            self._begin_adapter(request)
        params = request.params
        slow = params.structured_outputs or params.reasoning or request.adapter is not None
        if reads or (slow and not wait):
            self._compiling[request.id] = request
            self._constraints.start(request.id, partial(self._constrain, request))
            return
        if (constraint := self._constrain(request)) is not None:
            self._constraints.held[request.id] = constraint
        self._scheduler.add(request)

    def _begin_adapter(self, request: Request) -> None:
        """Raise RequestError if there is no room for adapters, and forget those of no request."""
        if self.plan.adapters is None:
            raise RequestError(
                "this model has no room for adapters",
                "Start it with --max-loras, or with --lora NAME=REF.",
                param="model",
            )
        if self._forget is not None:
            compiling = {each.content[0] for each in self._compiling.values()}
            loaded = {use.adapter.digest for use in self.plan.adapters.loaded}
            self._forget(self._scheduler.adapters() | compiling | loaded | {request.content[0]})

    def abort(self, request_id: str) -> None:
        """Drop a request. An unknown or finished one is ignored."""
        self._scheduler.abort(request_id)
        self._constraints.drop(request_id)
        self._compiling.pop(request_id, None)

    def step(self) -> list[EngineOutput]:
        """Launch the next step, and return the outputs of the one `lag` steps before it. Raises
        OutOfMemoryError and DeviceError."""
        from inferno.device.failures import device_errors

        try:
            with device_errors(self.plan.device, "compute a step"):
                outputs = self._step()
            self._presence.publish()
            return outputs
        except BaseException:  # its owner may go on: with Ctrl-C, or after an error
            self._constraints.settle()
            self._in_flight.clear()
            self._scheduler.drop_in_flight()
            raise

    def _step(self) -> list[EngineOutput]:
        outputs = self._add_compiled()
        step, constraints = self._scheduler.plan(), self._constraints.held
        if not step.is_empty:
            if constraints:
                outputs += self._launch_constrained(step)
            else:
                launched, ticket = self.clock(), self._runner.launch(step)
                ticket.draw(NO_MASKS)
                self._in_flight.append((step, ticket, launched))
        if len(self._in_flight) > (0 if step.is_empty else self._lag):
            outputs += self._commit()
        elif step.is_empty and self.waits_for is not None:
            self._store.sleep()
        return outputs

    @property
    def waits_for(self) -> int | None:
        """The descriptor to sleep on while nothing can run before a store has brought blocks."""
        return self._store.waits_for if not self._scheduler.stats.num_running else None

    def rest(self) -> None:
        """Take note of what a store has done, while there is nothing to compute."""
        self._store.come()
        self._presence.publish()

    def _add_compiled(self) -> list[EngineOutput]:
        """Queue the requests whose grammars have been compiled and whose adapters are read. Returns
        the errors of others, and the ends of those that have no tokens."""
        if not self._compiling:
            return []
        outputs = list[EngineOutput]()
        for request_id, error in self._constraints.ready(idle=not self._scheduler.busy).items():
            request = self._compiling.pop(request_id)
            if isinstance(error, InfernoError) and request.adapter is not None:
                outputs.append(EngineOutput.failed(request_id, error))
            elif error is not None:
                ended = FinishReason.ERROR
                outputs.append(EngineOutput(request_id, None, ended, error=str(error)))
            elif request.token_ids:
                self._scheduler.add(request)
            else:
                outputs.append(EngineOutput(request_id, None, FinishReason.STOP))
        return outputs

    def _launch_constrained(self, step: Step) -> list[EngineOutput]:
        """Launch and draw a step with masks. They depend on the tokens before it, so the steps in
        flight are committed first; their outputs are returned. Without such steps, the masks are
        computed beside the forward pass."""
        request_of = self._scheduler.request_of
        requests = {s.row: request_of(s.row) for s in step.slices if s.samples}
        masks = self._constraints.masks(requests, beside=not self._in_flight)
        launched, ticket = self.clock(), self._runner.launch(step, masks.begin)
        outputs = list[EngineOutput]()
        while masks.rows and self._in_flight:
            outputs += self._commit()
        ticket.draw(masks.result())
        self._in_flight.append((step, ticket, launched))
        return outputs

    def _commit(self) -> list[EngineOutput]:
        step, ticket, launched = self._in_flight.popleft()
        sampled = ticket.result()
        began, self._committed = max(launched, self._committed), self.clock()
        if step.slices:  # the device computes one step after the other
            work, alone = step.work
            self._scheduler.budget.record(work, self._committed - began, alone=alone)
        outputs = self._scheduler.commit(step, sampled)
        for output in outputs if sampled.failed else ():
            if output.finish is FinishReason.ERROR:
                log.error("%s", output.failure().cause)
        constraints = self._constraints.held
        return follow(constraints, outputs, self._scheduler) if constraints else outputs

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return self._scheduler.busy or bool(self._compiling)

    def stats(self) -> EngineStats:
        self._presence.gauge(self._scheduler.stats)
        return self._scheduler.stats

    def check(self) -> None:
        """Check the scheduler's invariants, for tests."""
        self._scheduler.check()

    def close(self) -> None:
        """Free the model and its cache, and give their memory back to the system. The engine cannot
        be used again."""
        self._store.close()
        self._presence.close()
        self._runner = _Closed()
        self._in_flight.clear()
        self._scheduler.drop_in_flight()
        give_memory_back()


class _Closed:
    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> Ticket:
        raise RequestError("the engine is closed", "Load another one.")


def scheduler_of(
    plan: Plan,
    groups: CacheGroups,
    verify: float | None = None,
    store: NoStore = NO_STORE,
    streams: bool = False,
) -> Scheduler:
    """`verify`: the measured cost of a draft, or None. `streams`: bound steps in time."""
    drafts = None
    if (speculation := plan.speculation) is not None:
        drafts = DraftCost(most=speculation.num_drafts, propose=speculation.propose_cost)
        drafts = drafts if verify is None else evolve(drafts, verify=verify)
    return Scheduler(
        groups,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        max_step_time=plan.max_step_time if streams else 0.0,
        drafts=drafts,
        store=store,
        adapter_slots=0 if plan.adapters is None else plan.adapters.slots,
    )
