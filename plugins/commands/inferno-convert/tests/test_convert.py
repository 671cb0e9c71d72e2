"""Conversions: what is written, what an interruption leaves, and what is refused."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from inferno.catalog import Catalog, Offer, load_catalog
from inferno.cli import cli
from inferno.contracts import DenseCheckpoint, Output, Piece, WriteOptions, Writer
from inferno.errors import InfernoError, OptionError, WriteError
from inferno.testing import (
    TOY_SIZES,
    assert_same_tokens,
    random_tensors,
    run_python,
    torch_only,
)
from inferno_convert.convert import convert
from inferno_convert.place import MANIFEST

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **TOY_SIZES,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama in bfloat16."""
    folder = tmp_path_factory.mktemp("convert") / "model"
    tensors = random_tensors(CONFIG, folder.with_name("source"))
    folder.mkdir()
    save_file({n: t.bfloat16() for n, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "dtype": "bfloat16"}))
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    return folder


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def content(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name != MANIFEST}


def with_writer(catalog: Catalog, writer: Writer) -> Catalog:
    offers = {**catalog.offers}
    own = Offer(writer, "inferno")
    offers["inferno_writers"] = (*offers["inferno_writers"], own)
    return attrs.evolve(catalog, offers=offers)


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
    held = {name: f.name for f in files for name in load_file(f)}
    assert index["weight_map"] == held
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


@pytest.mark.parametrize("to", ["safetensors", pytest.param("gptq-int4", marks=pytest.mark.slow)])
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


# --- what is refused ------------------------------------------------------------------------------


def refused(call: Callable[[], Any], kind: type[InfernoError]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.cause and caught.value.remedy
    return f"{caught.value.cause} {caught.value.remedy}"


def test_an_earlier_result_is_replaced_only_by_force(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(str(model), "safetensors", out)
    before = content(out)
    said = refused(lambda: convert(str(model), "fp8", out), OptionError)
    assert "--force" in said and content(out) == before
    convert(str(model), "fp8", out, force=True)
    assert "quantization_config" in json.loads((out / "config.json").read_text())


def test_a_folder_that_is_no_conversion_is_never_replaced(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    said = refused(lambda: convert(str(model), "fp8", out, force=True), OptionError)
    assert "not written by a conversion" in said
    assert (out / "letter.txt").read_text() == "dear"


GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "sliding_window": 16,
    "rope_theta": 150_000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
}


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


@pytest.mark.parametrize("size", ["foo", "60%", "0"])
def test_an_invalid_size_of_files_is_refused_by_its_option(model: Path, size: str) -> None:
    given = ["convert", str(model), "--to", "safetensors", "-o", "out", "--split-size", size]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code != 0 and f"invalid --split-size {size!r}" in done.output


def test_unknown_targets_and_options_that_do_not_apply(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "gptq-int4" in refused(lambda: convert(str(model), "gptq-int5", out), OptionError)
    said = refused(lambda: convert(str(model), "fp8", out, WriteOptions(group=64)), OptionError)
    assert "--group-size does not apply to fp8" in said
    for wrong in (WriteOptions(group=0), WriteOptions(group=-2), WriteOptions(damping=math.nan)):
        said = refused(partial(convert, str(model), "gptq-int4", out, wrong), OptionError)
        assert "at least 1" in said or "a damping of nan" in said
    text = tmp_path / "text.txt"
    text.write_text("x")
    said = refused(lambda: convert(str(model), "fp8", out, calibrate=text), OptionError)
    assert "--calibrate" in said
    said = refused(lambda: convert(str(model), "awq-int4", out, calibrate=out), OptionError)
    assert "text file" in said
    assert not out.exists() and list(tmp_path.glob(".*")) == []


def test_a_disk_without_room(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(1 << 40, 1 << 40, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    said = refused(lambda: convert(str(model), "safetensors", tmp_path / "out"), WriteError)
    assert "Free some space" in said and "16.0 MiB to spare" in said
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
        said = refused(lambda: convert(str(model), "safetensors", out), WriteError)
    assert "No space left" in said and "run the same command again" in said
    assert not out.exists()
    convert(str(model), "safetensors", out)
    ours, theirs = (load_file(f / "model.safetensors") for f in (out, model))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_folder_that_cannot_be_written_to(model: Path, tmp_path: Path) -> None:
    said = refused(lambda: convert(str(model), "safetensors", tmp_path / "no" / "out"), WriteError)
    assert "folder that you can write to" in said
    (tmp_path / "file").write_text("")
    refused(lambda: convert(str(model), "safetensors", tmp_path / "file" / "out"), WriteError)


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
        said = refused(lambda: convert(str(model), "safetensors", tmp_path / "out"), WriteError)
    assert "another process" in said


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
