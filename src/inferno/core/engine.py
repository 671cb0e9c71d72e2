"""The engine in this process: plan a step, launch it, commit the results of an earlier one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from inferno.constraints import NO_MASKS, Constraint, Constraints, follow
from inferno.core.kvcache import CacheGroups
from inferno.core.launches import Closed, InFlight, Runner, needed, save_last
from inferno.core.schedule.planned import scheduler_of as scheduler_of
from inferno.core.schedule.scheduler import Scheduler
from inferno.core.types import Step
from inferno.errors import AsleepError, RequestError
from inferno.host import give_memory_back
from inferno.plan import Opened, Plan
from inferno.request.requests import (
    FIRST_VERSION,
    EngineOutput,
    EngineStats,
    FinishReason,
    Request,
    sleep_level,
)
from inferno.request.validation import validate_request
from inferno.request.versions import Versions
from inferno.stores import NO_PRESENCE, NO_STORE, AsleepStore, NoPresence, NoSessions, NoStore
from inferno.stores.opening import open_prefix, open_presence
from inferno.weights.packing import PackedWeights

if TYPE_CHECKING:
    from inferno.core.home import Home
    from inferno.core.runner import ModelRunner

log = logging.getLogger("inferno.engine")


class Engine:
    """Synchronous and single-threaded: its owner calls `step` while it is `busy`.

    A step is launched before the results of the `lag` steps before it are committed, so that a
    device computes while the host plans. `constrain` reads a request's adapter, and returns its
    constraint or None, perhaps in a thread. `forget` keeps only these adapters; `clock`: seconds.
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
        home: Home | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        from inferno.device.failures import device_errors

        self.plan, self._home, self.clock = plan, home, clock
        self.asleep = False
        """Whether its memory was given back. Requests that it has go on after `wake_up`."""
        self._scheduler, self._runner, self.budget = scheduler, runner, scheduler.budget
        self._lag, self._store, self._presence = lag, store, presence
        self._constrain, self._forget = constrain, forget
        self._constraints = Constraints(plan.vocab_size, looks=not lag)
        self._compiling: dict[str, Request] = {}
        self._in_flight, self._versions = InFlight(clock), Versions()
        self._late: list[EngineOutput] = []
        """Outputs that the next step returns."""
        self._planned: Step | None = None
        """The step being computed."""
        self._errors = device_errors(plan.device, "compute a step")

    @classmethod
    def load(
        cls,
        opened: Opened,
        free: Callable[[], int] | None = None,
        packed: PackedWeights | None = None,
        streams: bool = False,
        home_of: Callable[[Opened, PackedWeights | None], Home] | None = None,
    ) -> Engine:
        """Load the plan's model, its matrices from `packed` if they are there, measure its memory
        on a CUDA device (`plan` is then the measured one), and allocate its cache. With `streams`,
        callers wait for each token, so steps are bounded in time too. Tests give `free`, which
        reads the free memory; `home_of` loads a model that several processes share. The caller
        closes `opened` afterwards. Raises CheckpointError, DeviceError, PluginError and
        OutOfMemoryError."""
        from inferno.core.home import Home
        from inferno.device import device_errors
        from inferno.weights.measure import free_memory, measure

        plan, free = opened.plan, free or free_memory(opened.plan)
        queue = opened.parts.queue_policy.build
        before = free() if free is not None else 0

        def start(plan: Plan, *, trial: bool = False) -> tuple[Engine, ModelRunner]:
            prefix, sessions = (None, None) if trial else open_prefix(opened, plan)
            groups = CacheGroups.of_plan(plan, prefix)
            runner, store = home.run(plan, groups, sessions, trial=trial)
            home.again = partial(home.rerun, plan, groups, sessions)
            bounded = streams and not trial
            engine = cls(
                plan,
                scheduler_of(plan, groups, runner.verify_cost(), store, bounded, queue),
                runner,
                lag=runner.lag,
                store=store,
                presence=NO_PRESENCE if trial else open_presence(opened, plan, groups, store),
                constrain=home.constrain,
                forget=home.forget,
                home=home,
            )
            return engine, runner

        with device_errors(plan.device):
            home = (home_of or Home.load)(opened, packed)
            if free is not None:
                models = home.resident.present.models
                plan = measure(plan, models, partial(start, trial=True), free, before)
            engine, runner = start(plan)
            engine._constraints.start_threads()
            runner.capture_ahead()
            return engine

    def submit(self, request: Request, *, wait: bool = True) -> None:
        """Queue a request. Raises RequestError or GrammarError and changes nothing if it is
        invalid. Without `wait` its grammar is compiled and its adapter read in a thread, whose
        errors are later outputs; one without tokens ends once its adapter is read."""
        self.check_awake()
        plan, reads = self.plan, request.adapter is not None and not request.token_ids
        if not reads:
            validate_request(request, plan)
        if request.id in self._scheduler.ids or request.id in self._compiling:
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
        self._versions.forget(request_id)

    def step(self, *, naps: bool = True) -> list[EngineOutput]:
        """Launch the next step, and return the outputs of the one `lag` steps before it. If there
        is nothing to compute, it waits briefly for the store, unless `naps` is False. Raises
        OutOfMemoryError and DeviceError, and AsleepError while it is asleep."""
        self.check_awake()
        try:
            with self._errors:
                outputs = self._store.answered(self._step(naps))
                self._versions.note(outputs, self.weight_version)
            self._presence.publish()
            return outputs
        except BaseException:  # its owner may go on: with Ctrl-C, or after an error
            self._drop_in_flight()
            raise
        finally:
            self._planned = None

    def expected(self) -> float | None:
        """Return the seconds that the step in progress should take, None if that is not known yet;
        0 between steps, but for what the caller asks for. Another thread may call it."""
        if (planned := self._planned) is None:
            return 0.0
        works = [step.work for step in {planned, *self._in_flight.steps()}]
        times = [self.budget.expected(work, alone=alone) for work, alone in works]
        return None if None in times else sum(filter(None, times))

    def _drop_in_flight(self, store: NoStore | None = None) -> None:
        self._constraints.settle()
        self._in_flight.clear()
        self._scheduler.drop_in_flight(store)

    def _step(self, naps: bool) -> list[EngineOutput]:
        if self._store.is_asked:
            self._store.serve(partial(self.submit, wait=False), self.abort)
        late, self._late = self._late, []
        outputs = [*late, *self._add_compiled()] if late or self._compiling else []
        self._planned = step = self._plan() if self._constraints.held else self._scheduler.plan()
        if not (is_empty := step.is_empty):
            if self._constraints.held:
                outputs += self._launch_constrained(step)
            else:
                launched, ticket = self.clock(), self._runner.launch(step)
                ticket.draw(NO_MASKS)
                self._in_flight.add(step, ticket, launched)
        if len(self._in_flight) > (0 if is_empty else self._lag):
            outputs += self._commit()
        elif is_empty and self.waits_for is not None:
            if self._home is not None:
                self._home.settle()  # a fetch may wait for steps that were dropped
            if naps:
                self._store.sleep()
        return outputs

    def _plan(self) -> Step:
        """Plan a step, in which some requests with slow grammars rest while there are others."""
        resting = self._constraints.resting(self.clock(), len(self._scheduler.ids))
        step = self._scheduler.plan(resting)
        if resting and step.is_empty and not self._in_flight:
            step = self._scheduler.plan(self._constraints.resting(self.clock(), 0))
        return step

    @property
    def waits_for(self) -> int | None:
        """The descriptor to sleep on while nothing can run before a store has brought blocks."""
        descriptor = None if self._in_flight else self._store.waits_for
        return None if descriptor is not None and self._scheduler.stats.num_running else descriptor

    def rest(self) -> None:
        """Take note of what a store has done, while there is nothing to compute."""
        if not self.busy:  # a sequence that comes while it is paused is for the next step
            self._store.come()
        self._presence.publish()
        if self._home is not None:
            self._home.rest()

    @property
    def listens(self) -> int | None:
        """The descriptor on which it hears of others' work while it is not `busy`, or None."""
        return self._store.listens

    def _add_compiled(self, *, wait: bool = False) -> list[EngineOutput]:
        """Queue what is compiled. Returns others' errors, and the ends of those without tokens."""
        outputs = list[EngineOutput]()
        idle = wait or not self._scheduler.busy
        for request_id, error in self._constraints.ready(idle=idle).items():
            request = self._compiling.pop(request_id)
            if error is not None:
                outputs.append(EngineOutput.failed(request_id, error))
            elif request.token_ids:
                self._scheduler.add(request)
            else:
                outputs.append(EngineOutput(request_id, None, FinishReason.STOP))
        return outputs

    def _launch_constrained(self, step: Step) -> list[EngineOutput]:
        """Launch and draw a step with masks. Steps in flight that draw tokens that these depend on
        are committed first, and their outputs returned. Without any, masks are computed beside."""
        drawn = {s.row: self._scheduler.sequence_of(s.row) for s in step.slices if s.samples}
        requests = {row: sequence.request for row, sequence in drawn.items()}
        masks = self._constraints.masks(requests, beside=not self._in_flight)
        outputs, waits = list[EngineOutput](), any(drawn[r].num_unknown > 1 for r in masks.rows)
        launched, ticket = self.clock(), self._runner.launch(step, masks.begin)
        while waits and self._in_flight:
            outputs += self._commit()
        ticket.draw(masks.result())
        self._in_flight.add(step, ticket, launched)
        return outputs

    def _commit(self) -> list[EngineOutput]:
        step, sampled, seconds = self._in_flight.result()
        self._store.computed(step, seconds)
        outputs = self._scheduler.commit(step, sampled, seconds)
        for output in outputs if sampled.failed else ():
            if output.finish is FinishReason.ERROR:
                log.error("%s", output.failure().cause)
        return follow(self._constraints.held, outputs, self._scheduler)

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do: nothing while it is asleep."""
        waiting = bool(self._compiling or self._late) or self._store.is_asked
        return not self.asleep and (self._scheduler.busy or waiting)

    # --- sleep, and other weights -----------------------------------------------------------------

    @property
    def weight_version(self) -> str:
        """The version of the weights: the caller's, or how often they were updated."""
        return self._home.resident.version if self._home is not None else FIRST_VERSION

    @property
    def unfinished(self) -> list[str]:
        """The ids of the requests that it has."""
        return [*self._scheduler.ids, *self._compiling]

    def check_awake(self) -> None:
        """Raise AsleepError while it is asleep."""
        if self.asleep:
            raise AsleepError()

    def sleep(self, level: int = 1) -> None:
        """Give back the cache's memory and, not on a CPU, the weights', which host memory keeps; by
        `level` 2 all weights', which are read again. New requests are refused until `wake_up`."""
        home = needed(self._home)
        sleep_level(level)
        if not self.asleep:
            self._let_go()
        home.resident.release(level)

    def wake_up(self, *, cache: bool = True) -> None:
        """Load what `sleep` released; without `cache` the weights only. If it raises, it sleeps."""
        home = needed(self._home)
        if self.asleep:
            with home.errors("wake up"):
                home.resident.restore()
                if cache:
                    self._rise(home)

    def update_weights(
        self, path: Path, version: str | None = None, *, temporary: bool = False
    ) -> str:
        """Replace the weights that a safetensors file or a folder has, by the checkpoint's names,
        and forget what the old ones computed: requests go on once their tokens are computed again.
        Returns the new version. Raises CheckpointError, and has changed nothing; if not even the
        old weights can be loaded again, it is asleep. If it is, `wake_up` loads the new ones."""
        home = needed(self._home)
        update = home.resident.checked(path, temporary=temporary)
        if self.asleep:
            home.resident.apply(update, version, load=False)
            return self.weight_version
        self._let_go()
        with home.errors("update its weights"):
            try:
                home.resident.apply(update, version)
            finally:
                if home.resident.loaded is not None:
                    self._rise(home)
        self._versions = Versions()
        return self.weight_version

    def reset_prefix_cache(self) -> None:
        """Forget what memory has of earlier tokens; requests compute theirs again."""
        self._drop_in_flight(self._store)

    def _let_go(self) -> None:
        """Let go of the cache, and of all that refers to the model."""
        while self._compiling:
            self._late += self._add_compiled(wait=True)
        save_last(self._store, self._runner, self._home)
        self._drop_in_flight(NO_STORE)
        self._store.close()
        self._store, self._runner, self.asleep = AsleepStore.of(self._store), Closed(), True
        self._presence.clear()

    def _rise(self, home: Home) -> None:
        before, (self._runner, self._store), self.asleep = self._store, home.again(), False
        self._store.drop(before.dropped)
        self._drop_in_flight(self._store)
        self._presence.follow(self._store.watch)

    @property
    def sessions(self) -> NoSessions:
        """What is kept of sessions."""
        return self._store.sessions

    def stats(self) -> EngineStats:
        self._presence.gauge(stats := self._scheduler.stats)
        return stats

    def check(self) -> None:
        """Check the scheduler's invariants, for tests."""
        self._scheduler.check()

    def close(self) -> None:
        """Free the model and its cache for good, and give their memory back to the system."""
        save_last(self._store, self._runner, self._home)
        self._store.close()
        self._presence.close()
        self._runner = Closed()
        self._drop_in_flight()
        if self._home is not None:
            self._home.close()
            self._home = None
        give_memory_back()
