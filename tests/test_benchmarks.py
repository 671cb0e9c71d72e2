"""The arithmetic of `benchmarks/`: which rounds count, medians, ratios, shares of the machine's own
speed."""

from __future__ import annotations

from pathlib import Path

import cells
import machine
import models
import pytest
import report
import samples

SPEED = machine.Speed(10.0, 100.0)


def sample(
    engine: str,
    round_: int,
    value: float,
    *,
    cell: str = "decode",
    clean: bool = True,
    **figures: float,
) -> samples.Sample:
    return samples.Sample(
        format="q8_0",
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
    found = [sample("inferno", i, i, clean=i > 0) for i in range(3)]
    assert [round_["inferno"].round for round_ in run_of(*found).counted("q8_0", "decode")] == [
        1,
        2,
    ]
    found += [sample("inferno", i, i, clean=False) for i in range(3, 6)]
    assert len(run_of(*found).counted("q8_0", "decode")) == 6


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


@pytest.mark.parametrize("name", models.SHAPES)
def test_prompts_are_of_every_models_vocabulary_and_have_no_end_token(name: str) -> None:
    found = [
        token
        for cell in cells.cells(quick=False).values()
        for prompt in cell.prompts(0)
        for token in prompt
    ]
    assert max(found) < models.SHAPES[name].vocab_size - 1


def test_the_report_says_share_of_floor_the_highest_peak_and_who_was_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "samples.jsonl"
    run = samples.load(path, "name", "qwen3-0.6b")
    for found in (
        sample("inferno", 0, 40.0),
        sample("a", 0, 20.0),
        sample("inferno", 0, 1.5, cell="peak"),
        sample("inferno", 1, 1.25, cell="peak"),
    ):
        samples.keep(path, run, found)
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
    found = [sample(engine, 0, 90.0, cell=report.FIRST, peak_gb=3.0) for engine in ("inferno", "a")]
    text = report.report(run_of(*found, sample("inferno", 0, 1.5, cell=report.COLD, peak_gb=2.0)))
    assert "| start to first token, s | 1.50 | 90.00 |  |" in text
    assert "| peak memory at the first token, GB | 2.00 | 3.00 |  |" in text
