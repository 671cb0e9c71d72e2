"""Conversions that are refused, and what a failure leaves."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conversions import catalog, content, model, with_writer
from safetensors.torch import load_file

from inferno.catalog import Catalog
from inferno.cli import cli
from inferno.contracts import DenseCheckpoint, Output, Piece, WriteOptions, Writer
from inferno.errors import InfernoError, OptionError, WriteError
from inferno_convert.convert import convert

__all__ = ["catalog", "model"]


def refused(call: Callable[[], Any], kind: type[InfernoError]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.cause and caught.value.remedy
    return f"{caught.value.cause} {caught.value.remedy}"


def test_an_earlier_result_is_replaced_only_by_force(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(str(model), "safetensors", out)
    before = content(out)
    error = refused(lambda: convert(str(model), "fp8", out), OptionError)
    assert "--force" in error and content(out) == before
    convert(str(model), "fp8", out, force=True)
    assert "quantization_config" in json.loads((out / "config.json").read_text())


def test_a_folder_that_is_no_conversion_is_never_replaced(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    error = refused(lambda: convert(str(model), "fp8", out, force=True), OptionError)
    assert "not written by a conversion" in error
    assert (out / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize("size", ["foo", "60%", "0"])
def test_an_invalid_size_of_files_is_refused_by_its_option(model: Path, size: str) -> None:
    given = ["convert", str(model), "--to", "safetensors", "-o", "out", "--split-size", size]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code != 0 and f"invalid --split-size {size!r}" in done.output


def test_unknown_targets_and_options_that_do_not_apply(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "gptq-int4" in refused(lambda: convert(str(model), "gptq-int5", out), OptionError)
    error = refused(lambda: convert(str(model), "fp8", out, WriteOptions(group=64)), OptionError)
    assert "--group-size does not apply to fp8" in error
    for wrong in (WriteOptions(group=0), WriteOptions(group=-2), WriteOptions(damping=math.nan)):
        error = refused(partial(convert, str(model), "gptq-int4", out, wrong), OptionError)
        assert "at least 1" in error or "a damping of nan" in error
    text = tmp_path / "text.txt"
    text.write_text("x")
    error = refused(lambda: convert(str(model), "fp8", out, calibrate=text), OptionError)
    assert "--calibrate" in error
    error = refused(lambda: convert(str(model), "awq-int4", out, calibrate=out), OptionError)
    assert "text file" in error
    assert not out.exists() and list(tmp_path.glob(".*")) == []


def test_a_disk_without_room(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(1 << 40, 1 << 40, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    error = refused(lambda: convert(str(model), "safetensors", tmp_path / "out"), WriteError)
    assert "Free some space" in error and "16.0 MiB to spare" in error
    assert not list(tmp_path.glob("*out*")) + list(tmp_path.glob(".*")), "nothing to continue with"


def test_a_disk_that_fills_up_keeps_what_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.pwrite, [10]

    def full(descriptor: int, data: Any, offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        error = refused(lambda: convert(str(model), "safetensors", out), WriteError)
    assert "No space left" in error and "run the same command again" in error
    assert not out.exists()
    convert(str(model), "safetensors", out)
    ours, theirs = (load_file(f / "model.safetensors") for f in (out, model))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_folder_that_cannot_be_written_to(model: Path, tmp_path: Path) -> None:
    error = refused(lambda: convert(str(model), "safetensors", tmp_path / "no" / "out"), WriteError)
    assert "folder that you can write to" in error
    (tmp_path / "file").write_text("")
    refused(lambda: convert(str(model), "safetensors", tmp_path / "file" / "out"), WriteError)


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write anywhere"
)
def test_a_read_only_folder(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    code = (
        "import sys; from pathlib import Path; from inferno_convert.convert import convert\n"
        "from inferno.errors import WriteError\n"
        "try: convert(sys.argv[1], 'safetensors', Path(sys.argv[2]))\n"
        "except WriteError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(model), str(folder / "out")]
    if os.geteuid() == 0:  # without the right to override permissions
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert "Permission denied" in done.stdout and "can write to" in done.stdout, done.stderr


def test_two_processes_do_not_write_one_result(model: Path, tmp_path: Path) -> None:
    from inferno_convert.place import Place

    with Place(tmp_path / "out", is_folder=True).locked():
        error = refused(lambda: convert(str(model), "safetensors", tmp_path / "out"), WriteError)
    assert "another process" in error


def test_a_writer_that_breaks_its_word_is_named(
    model: Path, catalog: Catalog, tmp_path: Path
) -> None:
    from inferno.contracts import WrittenFile
    from inferno.errors import PluginError

    def output(size: int) -> Callable[[DenseCheckpoint, WriteOptions, str], Output]:
        def made(source: DenseCheckpoint, options: WriteOptions, name: str) -> Output:
            file = WrittenFile(name=name, start=b"", places={"t": (0, 8)}, nbytes=8)
            piece = Piece(
                tensors=("t",), make=lambda: iter([("t", torch.zeros(size, dtype=torch.uint8))])
            )
            return Output(files=[file], pieces=[piece])

        return made

    for size in (7, 9):
        wrong = with_writer(catalog, Writer(name="wrong", describe="", output=output(size)))
        path = tmp_path / f"{size}"
        with pytest.raises(PluginError, match="8 bytes of t"):
            convert(str(model), "wrong", path, catalog=wrong)
        assert not path.exists()
