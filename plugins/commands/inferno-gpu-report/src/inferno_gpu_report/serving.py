"""Models with random weights in the engine: steps, ragged requests, one stream, an 8-bit cache."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from attrs import define, field, frozen

from inferno.cli.ragged import Load, ragged_load
from inferno.constraints import Masks
from inferno.core.engine import Engine
from inferno.core.launches import Runner, Ticket
from inferno.core.types import Sampled, Step
from inferno.plan import Options, Plan
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno_gpu_report.job import Job
from inferno_gpu_report.random_model import opened, size_of

SMALL_SIZE, LARGE_SIZE = "0.6B", "8B"
_PROFILED = 10
"""Steps that are profiled."""


@frozen
class Served:
    """The result of a workload."""

    seconds: float
    steps: int
    output_tokens: int
    complete: bool
    """Whether all requests ended in time."""


def serve(engine: Engine, load: Load, end: float) -> Served:
    """Submit all requests at once, and step until they are done or `time.monotonic` passes
    `end`."""
    for request in load.requests():
        engine.submit(request)
    steps = tokens = 0
    begin = time.perf_counter()
    while engine.busy and time.monotonic() < end:
        tokens += sum(output.token_id is not None for output in engine.step())
        steps += 1
    seconds, complete = time.perf_counter() - begin, not engine.busy
    for i in range(len(load.prompts)):
        engine.abort(str(i))
    while engine.busy:
        engine.step()
    return Served(seconds, steps, tokens, complete)


@frozen
class Floor:
    """What a model must at least read and compute, by its plan."""

    weight_bytes: int
    """Bytes of the weights that a step multiplies by."""
    weights: float
    """Number of weights of the layers: a token takes two operations for each."""
    kv_bytes: float
    """Bytes of keys and values of one token."""

    @classmethod
    def of(cls, plan: Plan) -> Floor:
        total = sum(use.nbytes for use in plan.schemes)
        config = plan.config
        vocabulary = int(config["vocab_size"]) * int(config["hidden_size"])
        looked_up = 0 if config.get("tie_word_embeddings") else _table_bytes(plan, vocabulary)
        weights = _number_of_weights(config)
        return cls(total - looked_up, weights, plan.kv_bytes_per_token)

    def seconds(self, job: Job, load: Load) -> float | None:
        """Return the minimum time for a workload whose requests all run at once: a step for each
        token of the longest output, one read of each token's context, and the prompts' products."""
        pairs = zip(load.prompts, load.output_lens, strict=True)
        contexts = sum(len(p) * n + n * (n - 1) // 2 for p, n in pairs)
        read = max(load.output_lens) * self.weight_bytes + contexts * self.kv_bytes
        return job.limits.seconds(read, 2 * self.weights * load.prompt_tokens)


def _table_bytes(plan: Plan, elements: int) -> int:
    """Return the bytes of the embedding, which a step does not read as a whole."""
    layouts = {use.layout for use in plan.schemes if "embed_tokens" in use.classes}
    return 2 * elements if layouts <= {"bfloat16"} else 0


def _number_of_weights(config: Mapping[str, Any]) -> float:
    """Return the number of weights in the layers' matrices, without the head."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    attention = 2 * hidden * heads + 2 * hidden * kv_heads
    return float(
        config["num_hidden_layers"] * (attention + 3 * hidden * config["intermediate_size"])
    )


@contextmanager
def engine_of(job: Job, config: Mapping[str, Any], **options: Any) -> Iterator[Engine]:
    """Context with an engine of random weights, whose memory is freed at the end."""
    few = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256}
    usual = {"max_num_seqs": 256, "max_num_batched_tokens": 16_384, "max_model_len": 2_304}
    given = {**(few | {"memory": "1GiB"} if job.small else usual), **options}
    setup = Options(device=job.device.torch_name, cache_policy="none", packed_cache="none", **given)
    begin = time.perf_counter()
    with opened(job, config, setup) as model:
        engine = Engine.load(model)
    job.fact("last load", f"{time.perf_counter() - begin:.1f} s")
    try:
        yield engine
    finally:
        engine.close()
        del engine
        gc.collect()
        if job.device.kind == "cuda":
            torch.cuda.empty_cache()


def ragged(job: Job) -> None:
    """Report the speed of nano-vllm's workload on a model of the same size."""
    name, config = size_of(job, SMALL_SIZE)
    load = ragged_load(12, 20, config["vocab_size"]) if job.small else ragged_load()
    with engine_of(job, config) as engine:
        plan = engine.plan
        _tell_plan(job, plan)
        serve(engine, _short(load), time.monotonic() + job.left / 4)
        served = serve(engine, load, time.monotonic() + 0.9 * job.left)
        floor = Floor.of(plan).seconds(job, load)
    job.fact("workload", f"{load.prompt_tokens} prompt and {load.output_tokens} output tokens")
    best = None if floor is None else load.output_tokens / floor
    detail = f"{served.output_tokens} tokens, {served.steps} steps in {served.seconds:.1f} s"
    if not served.complete:
        detail += "; stopped before the end"
    job.figure(
        f"{name}, output", served.output_tokens / served.seconds, "tok/s", best, detail=detail
    )
    job.figure(
        f"{name}, mean step",
        1e3 * served.seconds / served.steps,
        "ms",
        None if floor is None else 1e3 * floor / max(load.output_lens),
        lower=True,
    )


def _short(load: Load) -> Load:
    """Shorten the outputs to a warm-up: kernels are compiled, and steps are captured."""
    return Load(load.prompts, [2] * len(load.prompts), load.params)


def _tell_plan(job: Job, plan: Plan) -> None:
    job.fact("attention", ", ".join(use.name for use in plan.attention))
    kernels = {f"{use.op} {use.layout}".strip(): use.name for use in plan.kernels}
    job.fact("kernels", ", ".join(f"{op}: {name}" for op, name in kernels.items()) or "torch")
    job.fact("captured", "no" if plan.capture is None else f"by {plan.capture.name}")
    job.fact("cache", f"{plan.kv_tokens} tokens in blocks of {plan.block_size}")


def single_stream(job: Job) -> None:
    """Report one stream's tokens per second, dense and quantized."""
    name, config = size_of(job, LARGE_SIZE)
    output = 8 if job.small else 128
    draw = random.Random(0)
    prompt = [draw.randrange(config["vocab_size"]) for _ in range(32)]
    for label, more in (("bfloat16", {}), ("q4_k_m", {"isq": "q4_k_m"})):
        job.check_time(label)
        job.attempt(
            f"{name} {label}",
            lambda label=label, more=more: _stream(  # type: ignore[misc]
                job, f"{name} {label}", config, Load([prompt], [output]), more
            ),
        )


def _stream(
    job: Job, label: str, config: Mapping[str, Any], load: Load, more: Mapping[str, Any]
) -> None:
    with engine_of(job, config, max_num_seqs=1, max_num_batched_tokens=256, **more) as engine:
        _tell_plan(job, engine.plan)
        serve(engine, Load(load.prompts, [3]), time.monotonic() + job.left / 3)
        first = serve(engine, Load(load.prompts, [1]), job.end)
        served = serve(engine, load, job.end - 2)
        floor = Floor.of(engine.plan)
    decoded = served.output_tokens - 1
    if decoded < 1:
        raise TimeoutError("time was over before a second token")
    least = job.limits.seconds(floor.weight_bytes + 96 * floor.kv_bytes)
    seconds = served.seconds - first.seconds
    best = None if least is None else 1 / least
    job.figure(f"{label}, one stream", decoded / seconds, "tok/s", best)
    job.figure(f"{label}, first token", 1e3 * first.seconds, "ms", detail="of 32 prompt tokens")


def kv_cache(job: Job) -> None:
    """Report ragged requests with keys and values in the compute type and in 8 bits."""
    name, config = size_of(job, SMALL_SIZE)
    whole = ragged_load(8, 20, config["vocab_size"]) if job.small else ragged_load()
    load = Load(whole.prompts, [min(n, 4 if job.small else 96) for n in whole.output_lens])
    for kind in ("auto", "fp8_e4m3", "int8"):
        job.check_time(f"a cache of {kind}")

        def run(kind: str = kind) -> None:
            with engine_of(job, config, kv_cache_dtype=kind) as engine:
                serve(engine, _short(load), time.monotonic() + job.left / 4)
                served = serve(engine, load, job.end - 2)
                floor, attention = Floor.of(engine.plan).seconds(job, load), engine.plan.attention
            job.figure(
                f"{name}, cache {'bfloat16' if kind == 'auto' else kind}",
                served.output_tokens / served.seconds,
                "tok/s",
                None if floor is None else load.output_tokens / floor,
                detail=", ".join(use.name for use in attention),
            )

        job.attempt(f"cache {kind}", run)


# --- steps ----------------------------------------------------------------------------------------


@define
class _Times:
    """Seconds of the parts of steps."""

    launch: list[float] = field(factory=list)
    draw: list[float] = field(factory=list)
    wait: list[float] = field(factory=list)


@frozen
class _TimedTicket:
    ticket: Ticket
    times: _Times

    def draw(self, masks: Masks) -> None:
        begin = time.perf_counter()
        self.ticket.draw(masks)
        self.times.draw.append(time.perf_counter() - begin)

    def result(self) -> Sampled:
        begin = time.perf_counter()
        sample = self.ticket.result()
        self.times.wait.append(time.perf_counter() - begin)
        return sample


@frozen
class _TimedRunner:
    """A runner whose calls are timed (`engine.Runner`)."""

    runner: Runner
    times: _Times

    def launch(self, step: Step, cut: Any = None) -> Ticket:
        begin = time.perf_counter()
        ticket = self.runner.launch(step, cut)
        self.times.launch.append(time.perf_counter() - begin)
        return _TimedTicket(ticket, self.times)


def steps(job: Job) -> None:
    """Report the time of a decode step of 1, 32 and 256 sequences, on the host and the device."""
    name, config = size_of(job, SMALL_SIZE)
    with engine_of(job, config) as engine:
        _tell_plan(job, engine.plan)
        floor = Floor.of(engine.plan)
        for count in (1, 4) if job.small else (1, 32, 256):
            job.check_time(f"steps of {count} sequences")
            job.attempt(f"{count} sequences", lambda n=count: _steps(job, engine, n, floor))  # type: ignore[misc]


def _steps(job: Job, engine: Engine, count: int, floor: Floor) -> None:
    context, warm, timed = (20, 3, 5) if job.small else (840, 12, 60)
    params = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=warm + timed + 40)
    for i in range(count):
        token_ids = tuple((7919 * i + place) % 500 for place in range(context))
        engine.submit(Request(id=str(i), token_ids=token_ids, params=params))
    while engine.stats().generated_tokens < warm * count and engine.busy:
        engine.step()
    _synchronize(job)
    times, runner = _Times(), engine._runner
    engine._runner = _TimedRunner(runner, times)
    whole = list[float]()
    try:
        for _ in range(timed):
            begin = time.perf_counter()
            engine.step()
            whole.append(time.perf_counter() - begin)
    finally:
        engine._runner = runner
    step = statistics.median(whole)
    least = job.limits.seconds(floor.weight_bytes + count * context * floor.kv_bytes)
    best = None if least is None else 1e3 * least
    job.figure(f"step of {count}", 1e3 * step, "ms", best, lower=True)
    parts = {"launch": times.launch, "draw": times.draw, "wait": times.wait}
    for part, seconds in parts.items():
        job.figure(f"step of {count}: {part}", 1e3 * statistics.median(seconds), "ms")
    rest = step - sum(statistics.median(seconds) for seconds in parts.values())
    job.figure(f"step of {count}: plan and commit", 1e3 * max(0.0, rest), "ms")
    if job.device.kind == "cuda":
        _profile(job, engine, count, step)
    for i in range(count):
        engine.abort(str(i))
    while engine.busy:
        engine.step()


def mixed_steps(job: Job) -> None:
    """Report the time of a step of sequences that decode, and of one with a part of a prompt."""
    name, config = size_of(job, SMALL_SIZE)
    with engine_of(job, config) as engine:
        _tell_plan(job, engine.plan)
        for count, prompt in ((4, 20),) if job.small else ((32, 128), (32, 512), (128, 512)):
            job.check_time(f"steps of {count} sequences with prompts")
            job.attempt(
                f"{count} sequences, {prompt} tokens",
                lambda n=count, p=prompt: _mixed_steps(job, engine, n, p),  # type: ignore[misc]
            )


def _mixed_steps(job: Job, engine: Engine, count: int, prompt: int) -> None:
    """Every third step has a prompt, whose request ends with the next one."""
    context, timed = (20, 12) if job.small else (600, 90)
    usual, draw = {"temperature": 0.6, "ignore_eos": True}, random.Random(count)

    def submit(key: str, length: int, output: int) -> None:
        token_ids = tuple(draw.randrange(500) for _ in range(length))
        params = SamplingParams(max_tokens=output, **usual)  # type: ignore[arg-type]
        engine.submit(Request(id=key, token_ids=token_ids, params=params))

    for i in range(count):
        submit(str(i), context, 3 * timed)
    while engine.stats().generated_tokens < 3 * count and engine.busy:
        engine.step()
    plain, mixed = list[float](), list[float]()
    for i in range(timed):
        if i % 3 == 0:
            submit(f"prompt {i}", prompt, 2)
        begin = time.perf_counter()
        engine.step()
        _synchronize(job)
        (plain if i % 3 else mixed).append(time.perf_counter() - begin)
    label = f"step of {count}, each waited for"
    job.figure(label, 1e3 * statistics.median(plain), "ms")
    job.figure(f"{label}, {prompt} tokens of a prompt", 1e3 * statistics.median(mixed), "ms")
    for i in range(count):
        engine.abort(str(i))
    while engine.busy:
        engine.step()


def _synchronize(job: Job) -> None:
    if job.device.kind == "cuda":
        torch.cuda.synchronize()


def _profile(job: Job, engine: Engine, count: int, step: float) -> None:
    """Report how long the device computes in a step, by torch's profiler. It sees the kernels of a
    replayed graph too."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED):
            engine.step()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if str(event.device_type).endswith("CUDA")
    )
    busy, at = 0.0, float("-inf")
    for begin, end in spans:
        busy += max(0.0, end - max(begin, at))
        at = max(at, end)
    if not busy:
        job.note("the profiler saw no kernel")
        return
    device = busy * 1e-6 / _PROFILED
    job.figure(f"step of {count}: device", 1e3 * device, "ms", detail="kernels and copies")
    job.figure(f"step of {count}: kernels", len(spans) / _PROFILED, "launches")
    idle = max(0.0, 1 - device / step)
    job.figure(f"step of {count}: device idle", idle, "share", 0.05, detail="goal: below 0.05")
