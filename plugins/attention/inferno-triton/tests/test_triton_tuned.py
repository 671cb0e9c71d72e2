"""The tuner, with a timer that computes what it says, and the file that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from triton_compiler import launches

from inferno_triton import chips, mixture, packed, paged, rows, tuned
from inferno_triton.tiles import CHIPS, Chip, Product, Tile, Work
from inferno_triton.tune import Cases, best, main, neighbours, tune

CHIP = CHIPS["sm_90"]


class Timer:
    """Seconds that follow from a tile: the nearer to the best, the fewer. Large ones do not run."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, call: Callable[[], object]) -> float | None:
        tile = call()
        self.calls += 1
        if isinstance(tile, Tile):
            fits = tile.rows * tile.keys * tile.stages <= 64 * 64 * 3
            distance = abs(tile.rows - 32) + 8 * abs(tile.stages - 2)
        else:
            assert isinstance(tile, Product)
            fits = tile.outputs <= 64
            distance = abs(tile.outputs - 128) + 8 * abs(tile.warps - 8)
        return 1e-6 * (10 + distance) if fits else None


@attrs.frozen
class FakeCases:
    def attention(self, work: Work, dim: int) -> Callable[[Tile], Callable[[], object]]:
        return lambda tile: lambda: tile

    def product(self, tokens: int) -> Callable[[Product], Callable[[], object]]:
        return lambda product: lambda: product

    grouped = product


def tuned_chip() -> Chip:
    return tune(CHIP, FakeCases(), Timer(), budget=1e9, say=lambda line: None)


def test_it_finds_the_best_tile_that_runs() -> None:
    entry, seconds = best(Tile(16, 64, 4, 5), lambda tile: lambda: tile, Timer())
    assert (entry.rows, entry.keys, entry.stages) == (32, 64, 2) and seconds == pytest.approx(1e-5)
    chip = tuned_chip()
    assert all((each.outputs, each.warps) == (64, 8) for each in chip.products.values())
    assert {each.columns for each in chip.products.values()} == {256}, "a block of the planes"
    assert [each.tokens for each in chip.products.values()] == [16, 64]


def test_a_tile_that_does_not_run_is_kept_and_time_ends() -> None:
    huge = Tile(128, 128, 8, 5)
    assert best(huge, lambda tile: lambda: tile, Timer()) == (huge, None)
    timer = Timer()
    start = Tile(16, 64, 4, 5)
    assert best(start, lambda tile: lambda: tile, timer, until=-1) == (start, timer(lambda: start))
    assert timer.calls == 2


def test_what_it_measures() -> None:
    """Each case launches its kernel with the numbers of the tile, here on tensors without
    memory."""
    cases = Cases(CHIP, torch.device("meta"), (9, 0))
    with (
        launches(paged) as attends,
        launches(packed) as products,
        launches(mixture) as grouped,
        launches(rows),
    ):
        for (work, dim), tile in CHIP.tiles.items():
            cases.attention(work, dim)(attrs.evolve(tile, warps=2))()
        for tokens, product in CHIP.products.items():
            cases.product(tokens)(attrs.evolve(product, outputs=32))()
        for tokens, product in CHIP.grouped.items():
            cases.grouped(tokens)(attrs.evolve(product, columns=32))()
    records = [each for each in attends if each.kernel.fn.__name__ == "attend"]
    assert [each.options["num_warps"] for each in records] == [2] * len(CHIP.tiles)
    assert [each.arguments["SINGLE"] for each in records].count(False) == 3, "prompts"
    assert [each.kernel.fn.__name__ for each in products] == ["few", "many"]
    assert {each.arguments["BO"] for each in products} == {32}
    assert [each.arguments["BC"] for each in grouped] == [32, 32]


def test_neighbours_differ_in_one_number() -> None:
    tile = Tile(16, 64, 4, 1)
    for other in neighbours(tile):
        changed = [a != b for a, b in zip(attrs.astuple(tile), attrs.astuple(other), strict=True)]
        assert sum(changed) == 1
    assert Tile(8, 64, 4, 1) not in set(neighbours(tile)), "products have 16 rows or more"


def test_tiles_in_the_file_replace_the_table(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path, chip = tuned.path_of("NVIDIA H200", {"XDG_CACHE_HOME": str(tmp_path)}), tuned_chip()
    assert tuned.read(path, "NVIDIA H200", CHIP) == CHIP, "there is no file"
    tuned.save(path, "NVIDIA H200", chip)
    assert tuned.read(path, "NVIDIA H200", CHIP) == chip != CHIP
    assert not recwarn.list


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[:200], "not a file of tiles"),
        (lambda text: "[]", "not a file of tiles"),
        (lambda text: text.replace("128", "64"), "checksum"),
        (lambda text: text.replace('"version": 3', '"version": 4'), "checksum"),
    ],
)
def test_a_damaged_file_is_ignored_with_a_warning(
    damage: Callable[[str], str], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "tiles.json"
    tuned.save(path, "NVIDIA H200", tuned_chip())
    path.write_text(damage(path.read_text()))
    with pytest.warns(UserWarning, match=why):
        assert tuned.read(path, "NVIDIA H200", CHIP) == CHIP


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 7}, "version is 7"),
        ({"device": "NVIDIA A100"}, "measured on NVIDIA A100"),
        ({"shared_memory": 101_376}, "101376 bytes of shared memory"),
        ({"tiles": [["tokens", 64, 16, -64, 4, 3]]}, "not a tile"),
        ({"tiles": [["tokens", 64, 16, 64, 4, 10**9]]}, "not a tile"),
        ({"products": 3}, "not a tile"),
    ],
    ids=str,
)
def test_a_file_for_something_else_is_ignored_with_a_warning(
    changes: dict[str, object], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "tiles.json"
    tuned.save(path, "NVIDIA H200", CHIP)
    content = {**json.loads(path.read_text()), **changes}
    del content["sha256"]
    path.write_text(json.dumps({**content, "sha256": tuned._digest(content)}))
    with pytest.warns(UserWarning, match=why):
        assert tuned.read(path, "NVIDIA H200", CHIP) == CHIP


def test_a_chip_in_use_replaces_that_of_the_device() -> None:
    with chips.using(CHIP):
        assert chips.chip_at(torch.device("cpu")) is CHIP


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "no CUDA device" in capsys.readouterr().err
