"""How many columns share a scale is chosen such that few matrices stay dense, and said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferno.contracts import WriteOptions
from inferno.errors import OptionError, UnsupportedError
from inferno.testing import TOY_SIZES, skewed_model
from inferno_convert.convert import convert

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **TOY_SIZES,
    "hidden_size": 64,
    "intermediate_size": 128,
}
WRITERS = {
    "gptq-int4": "inferno_gptq",
    "awq-int4": "inferno_awq",
    "compressed-tensors": "inferno_compressed_tensors",
}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(WRITERS[request.param], reason="needs the writer's plugin")
    return str(request.param)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return skewed_model(tmp_path_factory.mktemp("groups"), LLAMA)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("abcdeab cabde eabc dabce " * 20)
    return file


def group_of(folder: Path) -> int:
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    if "config_groups" in settings:
        settings = settings["config_groups"]["group_0"]["weights"]
    return int(settings["group_size"])


def test_the_usual_group_gives_way_to_one_that_divides_the_columns(
    writer: str, source: Path, tmp_path: Path
) -> None:
    messages: list[str] = []
    made = convert(str(source), writer, tmp_path / "q", say=messages.append)
    assert group_of(tmp_path / "q") == 64
    note = "groups of 64 columns: with the usual 128, 12 matrices stay dense"
    assert note in made.notes and note in messages
    assert not any("stays dense:" in each or "stay dense:" in each for each in made.notes)


def test_a_group_that_was_asked_for_stays_and_a_better_one_is_named_before_the_work(
    writer: str, source: Path, tmp_path: Path
) -> None:
    messages: list[str] = []

    def progress(done: int, total: int, what: str) -> None:
        assert messages, "the work began before the notes"

    options = WriteOptions(group=128)
    convert(str(source), writer, tmp_path / "q", options, progress=progress, say=messages.append)
    assert group_of(tmp_path / "q") == 128
    assert "--group-size 64 leaves 0 matrices dense" in messages
    assert any(note.startswith("12 matrices stay dense: ") for note in messages)


def test_calibration_passes_over_matrices_that_stay_dense(
    writer: str, source: Path, text: Path, tmp_path: Path
) -> None:
    made = convert(str(source), writer, tmp_path / "q", WriteOptions(group=128), calibrate=text)
    assert made.calibrated and any("12 matrices stay dense" in note for note in made.notes)


def test_sizes_that_nothing_is_divisible_by_are_refused(
    writer: str, source: Path, tmp_path: Path
) -> None:
    for group, error in ((96, UnsupportedError), (0, OptionError)):
        with pytest.raises(error):
            convert(str(source), writer, tmp_path / "q", WriteOptions(group=group))
