"""Conversions: what is written, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from conversions import GPT_OSS, catalog, content, model, with_writer
from safetensors.torch import load_file, save_file

from inferno.catalog import Catalog
from inferno.contracts import DenseCheckpoint, Output, Piece, WriteOptions, Writer
from inferno.testing import assert_same_tokens, random_tensors, run_python, torch_only
from inferno_convert.convert import convert
from inferno_convert.place import MANIFEST

__all__ = ["catalog", "model"]

# --- what is written ------------------------------------------------------------------------------


def test_plain_tensors_are_copied_bit_for_bit(model: Path, tmp_path: Path) -> None:
    made = convert(str(model), "safetensors", tmp_path / "out")
    ours, theirs = (load_file(f / "model.safetensors") for f in (tmp_path / "out", model))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert (tmp_path / "out" / "generation_config.json").read_text() == '{"temperature": 0.5}'
    assert {*made.files, MANIFEST} == {f.name for f in (tmp_path / "out").iterdir()}


def test_the_dtype_is_that_of_every_matrix(model: Path, tmp_path: Path) -> None:
    convert(str(model), "safetensors", tmp_path / "out", WriteOptions(dtype="float32"))
    ours, theirs = (load_file(f / "model.safetensors") for f in (tmp_path / "out", model))
    for name, tensor in theirs.items():
        assert ours[name].dtype == torch.float32 and torch.equal(ours[name], tensor.float())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


def test_shards_have_an_index_and_the_size_asked_for(model: Path, tmp_path: Path) -> None:
    convert(str(model), "safetensors", tmp_path / "out", WriteOptions(split=50_000))
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(files) > 2 and all(f.stat().st_size < 60_000 for f in files)
    by_name = {name: f.name for f in files for name in load_file(f)}
    assert index["weight_map"] == by_name
    theirs = load_file(model / "model.safetensors")
    ours = {name: tensor for f in files for name, tensor in load_file(f).items()}
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_manifest_has_every_files_checksum(model: Path, tmp_path: Path) -> None:
    import hashlib

    convert(str(model), "safetensors", tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["to"] == "safetensors"
    for name, file in manifest["files"].items():
        data = (tmp_path / "out" / name).read_bytes()
        assert file == {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert manifest["files"].keys() == content(tmp_path / "out").keys()
    assert str(model) not in json.dumps({k: v for k, v in manifest.items() if k != "ref"})


@pytest.mark.slow
def test_experts_that_are_quantized_as_one_tensor_are_written_one_by_one(tmp_path: Path) -> None:
    """Which is said: under such names, other libraries may not find them."""
    tensors = random_tensors(GPT_OSS, tmp_path / "source")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        shape = (experts, rows, columns // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(118, 122, shape, dtype=torch.uint8)
    packed, values = tmp_path / "packed", tmp_path / "values"
    packed.mkdir()
    save_file(tensors, packed / "model.safetensors")
    config = {**GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}, "dtype": "float32"}
    (packed / "config.json").write_text(json.dumps(config))
    made = convert(str(packed), "safetensors", values, WriteOptions(dtype="float32"))
    assert any("one by one" in note for note in made.notes)
    assert_same_tokens((packed, values), torch_only())


# --- interruptions --------------------------------------------------------------------------------

_KILLED = """
import os, signal, sys
from pathlib import Path
from inferno_convert.convert import convert
from inferno_convert import writing

count = int(sys.argv[3])
writing.SYNC_BYTES = 1
write_piece = writing._write_piece

def killed(piece, files):
    global count
    count -= 1
    if count < 0:
        for name, tensor in piece.make():  # half of a tensor
            data = writing.bytes_of(tensor)
            files.write(name, 0, data[: data.nbytes // 2])
            os.kill(os.getpid(), signal.SIGKILL)
    return write_piece(piece, files)

writing._write_piece = killed
convert(sys.argv[1], sys.argv[4], Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("to", ["safetensors", "gptq-int4"])
def test_a_killed_run_continues_and_ends_with_the_same_bytes(
    to: str, model: Path, tmp_path: Path
) -> None:
    options = WriteOptions()
    convert(str(model), to, tmp_path / "whole", options)
    out = tmp_path / "out"
    for count in (0, 5):
        done = run_python(_KILLED, str(model), str(out), str(count), to)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not out.exists()
    made: list[str] = []
    convert(str(model), to, out, options, progress=lambda done, total, what: made.append(what))
    assert content(out) == content(tmp_path / "whole")
    assert list(tmp_path.glob(".*")) == []


def _failing(fails: Callable[[int], bool], calls: list[int]) -> Writer:
    """A writer of numbered tensors, which notes those that it makes."""

    def make(number: int) -> Iterator[tuple[str, torch.Tensor]]:
        if fails(number):
            raise KeyboardInterrupt
        calls.append(number)
        yield f"t{number}", torch.full((16,), number, dtype=torch.uint8)

    def output(source: DenseCheckpoint, options: WriteOptions, name: str) -> Output:
        from inferno.contracts import WrittenFile

        places = {f"t{i}": (4 + 16 * i, 16) for i in range(8)}
        file = WrittenFile(name=name, start=b"head", places=places, nbytes=4 + 16 * 8)
        pieces = [Piece(tensors=(f"t{i}",), make=partial(make, i)) for i in range(8)]
        return Output(files=[file], pieces=pieces)

    return Writer(name="numbers", describe="numbers", output=output)


def test_an_interrupted_run_makes_no_finished_piece_again(
    model: Path, catalog: Catalog, tmp_path: Path
) -> None:
    calls: list[int] = []
    stop = [4]
    numbers = with_writer(catalog, _failing(lambda n: n in stop, calls))
    out = tmp_path / "out.bin"
    with pytest.raises(KeyboardInterrupt):
        convert(str(model), "numbers", out, catalog=numbers)
    assert calls == [0, 1, 2, 3] and not out.exists()
    stop.clear()
    convert(str(model), "numbers", out, catalog=numbers)
    assert calls == [*range(8)]
    assert out.read_bytes() == b"head" + b"".join(bytes([i]) * 16 for i in range(8))


def test_damaged_bytes_of_an_earlier_run_are_made_again(
    model: Path, catalog: Catalog, tmp_path: Path
) -> None:
    calls: list[int] = []
    stop = [4]
    numbers = with_writer(catalog, _failing(lambda n: n in stop, calls))
    out = tmp_path / "out.bin"
    with pytest.raises(KeyboardInterrupt):
        convert(str(model), "numbers", out, catalog=numbers)
    part = tmp_path / ".out.bin.part" / "out.bin"
    with part.open("r+b") as stream:
        stream.seek(4 + 16 * 2)
        stream.write(b"?")
    stop.clear()
    convert(str(model), "numbers", out, catalog=numbers)
    assert calls == [0, 1, 2, 3, 2, 4, 5, 6, 7]
    assert out.read_bytes()[4 + 32 : 4 + 48] == b"\2" * 16


@pytest.mark.parametrize("change", ["options", "source"])
def test_a_run_with_other_arguments_begins_anew(
    change: str, model: Path, catalog: Catalog, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(model, tmp_path / "source"))
    calls: list[int] = []
    stop = [4]
    numbers = with_writer(catalog, _failing(lambda n: n in stop, calls))
    with pytest.raises(KeyboardInterrupt):
        convert(str(source), "numbers", tmp_path / "out.bin", catalog=numbers)
    stop.clear()
    options = WriteOptions()
    if change == "source":
        os.utime(source / "model.safetensors", (1, 1))
    else:
        options = WriteOptions(dtype="float16")
    convert(str(source), "numbers", tmp_path / "out.bin", options, catalog=numbers)
    assert calls == [0, 1, 2, 3, *range(8)]
