"""The harness of `benchmarks/` with engines that compute nothing: who is asked what, in which
processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import bench
import cells
import engines
import machine
import models
import pytest
import samples
import weights

SHAPE = models.SHAPES["qwen3-0.6b"]


class FakeWorker:
    """Answers at once. Notes the rooms that its class was started with."""

    rooms: dict[str, list[engines.Room]] = {}
    breaks: Callable[[str, int], bool] = staticmethod(lambda engine, longest: False)

    def __init__(
        self, engine: engines.Engine, variant: str, python: Path, model: Path, room: engines.Room
    ) -> None:
        self.engine, self.version, self.level = engine, "1", "avx2"
        self.cold_start, self.pid = 1.0, 1
        self.rooms.setdefault(engine.name, []).append(room)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[float, float]:
        if self.breaks(self.engine.name, max(map(len, prompts))):
            raise engines.EngineError("out of order")
        return 0.5, 1.0

    def close(self) -> None:
        pass


@pytest.fixture
def bench_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., bench.Bench]:
    monkeypatch.setattr(bench, "Worker", FakeWorker)
    monkeypatch.setattr(bench, "wait_for_quiet", lambda: None)
    monkeypatch.setattr(bench, "peak_gigabytes", lambda pid: 1.0)
    monkeypatch.setattr(bench, "available_gigabytes", lambda: 100.0)
    monkeypatch.setattr(machine.Neighbours, "clean", True)
    monkeypatch.setattr(FakeWorker, "rooms", {})

    def of(run: samples.Run, *names: str) -> bench.Bench:
        chosen = [engines.INFERNO, *(engines.PEERS[name] for name in names)]
        files = weights.Weights(Path("model"), 10**9)
        return bench.Bench(
            run,
            "q8_0",
            SHAPE,
            [bench.Entry(engine, "Q8_0", Path("python"), files) for engine in chosen],
            bench.Plan(work=tmp_path, rounds=2, threads=2, deadline=time.monotonic() + 600),
            lambda: machine.Speed(10.0, 100.0),  # type: ignore[arg-type]
        )

    return of


def test_engines_are_asked_for_the_cells_they_have(bench_of: Callable[..., bench.Bench]) -> None:
    run = samples.Run("name", "qwen3-0.6b")
    some = ("decode", "batch-16", "prefix-hit")
    chosen = {name: cell for name, cell in cells.cells(quick=True).items() if name in some}
    bench_of(run, "llama-cpp-python", "llama-bench", "transformers").in_process(chosen)
    pairs = {(sample.cell, sample.engine) for sample in run.samples}
    both = {"inferno", "llama-cpp-python"}
    assert {engine for cell, engine in pairs if cell == "batch-16"} == both | {"transformers"}
    assert {engine for cell, engine in pairs if cell == "prefix-hit"} == both
    assert ("decode", "llama-bench") in pairs and (cells.PEAK, "llama-bench") not in pairs
    assert len(run.rounds("q8_0", "decode")) == 2


def test_cells_of_one_context_share_processes(bench_of: Callable[..., bench.Bench]) -> None:
    run = samples.Run("name", "qwen3-0.6b")
    known = cells.cells(quick=True)
    names = ("decode", "prefill-2048", "prefix-hit", "prefix-full", "decode-64k")
    bench_of(run, "llama-bench").in_process({name: known[name] for name in names})
    plain, caching, long = FakeWorker.rooms["inferno"]
    assert (plain.keeps, plain.max_model_len) == (False, cells.PLAIN_LEN)
    assert (caching.keeps, caching.max_model_len) == (True, cells.PLAIN_LEN)
    assert long.max_model_len >= 64 * 1024 + 32
    assert long.cache_gigabytes >= long.max_model_len * SHAPE.cache_bytes / 1e9
    assert not any(room.keeps for room in FakeWorker.rooms["llama-bench"][:1])


def test_an_engine_that_fails_is_left_out_and_the_others_go_on(
    bench_of: Callable[..., bench.Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        FakeWorker, "breaks", lambda self, engine, longest: engine != "inferno" and longest > 1000
    )
    run = samples.Run("name", "qwen3-0.6b")
    names = ("decode", "prefill-2048", "batch-16")
    known = cells.cells(quick=True)
    bench_of(run, "llama-cpp-python").in_process({name: known[name] for name in names})
    pairs = {(sample.cell, sample.engine) for sample in run.samples}
    assert ("decode", "llama-cpp-python") in pairs
    assert ("prefill-2048", "inferno") in pairs and ("batch-16", "inferno") in pairs
    assert not {("prefill-2048", "llama-cpp-python"), ("batch-16", "llama-cpp-python")} & pairs
    assert run.skipped == {("q8_0", "llama-cpp-python", "prefill-2048"): "out of order"}
