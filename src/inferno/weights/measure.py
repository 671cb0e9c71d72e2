"""Measures the memory that a model takes on its device, and sizes the cache by that.

Torch's allocator keeps what it once took on a GPU. So the free memory that is missing after the
largest step is the most that the model needs. The trial step verifies no drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import evolve
from torch import nn

from inferno.device import device_errors
from inferno.device.offload import empty_caches
from inferno.nn import Attention, State
from inferno.plan import Measured, Plan, find_device, trial_lengths, trial_plan, with_measured
from inferno.request.requests import EngineOutput, Pooling, Request
from inferno.request.sampling_params import SamplingParams
from inferno.weights.fetched import with_times

FreeMemory = Callable[[], int]
"""Returns the bytes that are free on a device now."""

_PARAMS = SamplingParams(
    max_tokens=1,
    top_p=0.9,
    presence_penalty=0.5,
    repetition_penalty=1.1,
    logprobs=1,
    prompt_logprobs=1,
    seed=0,
)
"""Sampling that takes memory: penalties, top-p, log-probabilities."""
_DRAWS = (
    evolve(_PARAMS, logprobs=None, prompt_logprobs=None),
    SamplingParams(max_tokens=1, top_p=0.9),
    SamplingParams(max_tokens=1, temperature=0),
)
"""Sampling that leaves its tokens on the device: with penalties, without, and of the best token."""


class Trial(Protocol):
    """The part of an engine that a measurement uses."""

    def submit(self, request: Request) -> None: ...
    def step(self) -> list[EngineOutput]: ...
    @property
    def busy(self) -> bool: ...


class Captures(Protocol):
    """The part of a runner that a measurement uses."""

    @property
    def lag(self) -> int: ...
    def capture_ahead(self, most: int) -> int: ...
    def forget_captures(self) -> None: ...


def free_memory(plan: Plan) -> FreeMemory | None:
    """Return a function that reads the device's free memory, or None where nothing is measured. On
    a CPU free memory also changes for other reasons; the other kinds are untested. Ranks keep to
    what is planned: each must have as many blocks as the others."""
    device = plan.device
    if device.kind != "cuda" or plan.ranks is not None:
        return None
    return lambda: find_device(device.torch_name).free


def measure(
    plan: Plan,
    models: Sequence[nn.Module],
    start: Callable[[Plan], tuple[Trial, Captures]],
    free: FreeMemory,
    before: int,
) -> Plan:
    """Run a step of the most tokens that the plan admits, capture the two largest decode steps, and
    return the plan with the cache that fits. `start` makes an engine of a plan with a small cache,
    to which it binds the layers of `models`; `before` is the memory that was free before loading
    them. Raises OutOfMemoryError."""
    empty_caches(plan.device.kind)  # what only loading needed
    plan = with_times(plan, models)
    measured = _measured(plan, start, free, before)
    for model in models:
        for module in model.modules():
            if isinstance(module, Attention | State):
                module.cache = {}  # so that the trial's memory is free
    empty_caches(plan.device.kind)
    return with_measured(plan, measured)


def _measured(
    plan: Plan,
    start: Callable[[Plan], tuple[Trial, Captures]],
    free: FreeMemory,
    before: int,
) -> Measured:
    trial = trial_plan(plan)
    with device_errors(plan.device, "compute a step of the most tokens"):
        engine, runner = start(trial)
        _run(engine, trial_lengths(plan), _PARAMS, pooled=plan.whole_prompts)
        if runner.lag and not plan.whole_prompts:
            # Kernels are compiled here: at the first request, that would take two seconds.
            for params in _DRAWS:
                _run(engine, [1] * len(trial_lengths(plan)), params)
    computed, captured = free(), 0
    if runner.capture_ahead(0):
        runner.capture_ahead(1)
        largest = free()
        left = runner.capture_ahead(1)
        # The others use the memory of the largest one, and some more.
        captured = max(0, computed - largest) + max(0, largest - free()) * (1 + left)
    runner.forget_captures()
    used = before - computed - trial.kv_bytes
    return Measured(free=before, used=max(0, used), captured=captured)


def _run(
    engine: Trial, lengths: list[int], params: SamplingParams, *, pooled: bool = False
) -> None:
    pooling: Pooling | None = "mean" if pooled else None
    for i, length in enumerate(lengths):
        engine.submit(Request(id=str(i), token_ids=(0,) * length, params=params, pooling=pooling))
    while engine.busy:
        engine.step()
