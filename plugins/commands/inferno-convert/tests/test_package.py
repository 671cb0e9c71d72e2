"""`inferno package`: a wheel that pip installs and `package:NAME` runs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from tests.tiny_served import write

from inferno.catalog import load_catalog
from inferno.errors import CheckpointError, OptionError, WriteError
from inferno_convert.convert import convert
from inferno_convert.package import Packaged, PackageOptions, package

LICENSED = PackageOptions(name="Toy.Bear", license="apache-2.0")
CARD = "---\nlicense: mit\ntags:\n- bears\n---\n# The bear\n\nIt growls.\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write(tmp_path / "model")
    return tmp_path / "model"


def made(model: Path, options: PackageOptions = LICENSED, out: str = "dist") -> Packaged:
    return package(str(model), options, model.parent / out, load_catalog())


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def installed(wheel: Path, folder: Path) -> Path:
    """Install the wheel into a fresh environment that sees this one's packages, and return its
    Python."""
    done = subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    assert done.returncode == 0
    python = folder / "bin" / "python"
    [site] = folder.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in here]
    (site / "tests.pth").write_text("\n".join(lines))
    pip = [sys.executable, "-m", "pip", "-q", "--python", str(python)]
    done = subprocess.run([*pip, "install", "--no-index", "--no-deps", str(wheel)])
    assert done.returncode == 0
    return python


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    command = [str(python), "-m", "inferno", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=python.parent)


@pytest.mark.slow
def test_the_wheel_of_the_demo_model_answers_in_a_fresh_environment(tmp_path: Path) -> None:
    pytest.importorskip("inferno_package", reason="needs inferno-package")
    demo = pytest.importorskip("inferno_demo", reason="needs inferno-demo").path()
    options = PackageOptions(name="toy-demo", license="PSF-2.0", version="2.1")
    wheel = package(str(demo), options, tmp_path, load_catalog()).path
    python = installed(wheel, tmp_path / "env")

    flags = ["--prompt", "What does math.gcd do?", "--temperature", "0", "--max-tokens", "16"]
    done = run(python, "generate", "package:toy-demo", *flags, "--memory", "1GiB")
    assert done.stdout.strip() == "Greatest Common Divisor.", done.stderr
    shown = run(python, "explain", "package:toy-demo").stdout
    assert f"package: toy-demo 2.1, {tmp_path / 'env'}" in shown


def test_a_folder_is_packaged_as_it_is_with_its_licence_and_card(model: Path) -> None:
    (model / "README.md").write_text(CARD)
    (model / "LICENSE").write_text("Do as you like.")
    (model / "pytorch_model.bin").write_bytes(b"the same again")
    done = made(model, PackageOptions(name="Toy.Bear", version="1.0.0-rc1"))

    assert done.path.name == "toy_bear-1.0.0rc1-py3-none-any.whl"
    assert (done.name, done.license, done.notes) == ("toy-bear", "MIT", ())
    with zipfile.ZipFile(done.path) as archive:
        packaged = {n.removeprefix("toy_bear/model/"): archive.read(n) for n in archive.namelist()}
    left_out = {"README.md", "LICENSE", "pytorch_model.bin"}
    for file in model.iterdir():
        assert packaged.get(file.name) == (None if file.name in left_out else file.read_bytes())
    assert packaged["toy_bear-1.0.0rc1.dist-info/licenses/LICENSE"] == b"Do as you like."
    fields = metadata(done.path)
    assert (fields["License-Expression"], fields["License-File"]) == ("MIT", "LICENSE")
    card = str(fields.get_payload())
    assert card.startswith("# toy-bear\n") and card.endswith("# The bear\n\nIt growls.\n")
    weights = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert f"`{weights}`" in card and "tags:" not in card


def test_a_gguf_file_is_packaged_with_all_its_parts(model: Path) -> None:
    pytest.importorskip("inferno_gguf", reason="needs inferno-gguf")
    from inferno.contracts import WriteOptions

    parts = model.parent / "parts"
    parts.mkdir()
    convert(str(model), "f32", parts / "bear.gguf", WriteOptions(split=40_000))
    files = sorted(parts.glob("*.gguf"))
    assert len(files) > 1
    with zipfile.ZipFile(made(files[1]).path) as archive:
        names = {name for name in archive.namelist() if name.endswith(".gguf")}
    assert names == {f"toy_bear/{file.name}" for file in files}


def test_a_gguf_file_says_its_licence(tmp_path: Path) -> None:
    pytest.importorskip("inferno_gguf", reason="needs inferno-gguf")
    gguf = pytest.importorskip("gguf", reason="needs gguf")
    write(tmp_path / "model")
    convert(str(tmp_path / "model"), "f32", tmp_path / "plain.gguf")
    reader = gguf.GGUFReader(tmp_path / "plain.gguf")
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(tmp_path / "bear.gguf", architecture)
    for field in reader.fields.values():
        written = field.name.startswith("GGUF.") or field.name == "general.architecture"
        if not written and field.contents() != []:
            kind, *item = field.types
            writer.add_key_value(field.name, field.contents(), kind, item[-1] if item else None)
    writer.add_license("mit")
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert made(tmp_path / "bear.gguf", evolve(LICENSED, license=None)).license == "MIT"


def test_the_same_model_gives_the_same_bytes(model: Path) -> None:
    assert made(model, out="a").path.read_bytes() == made(model, out="b").path.read_bytes()


@pytest.mark.parametrize(
    "card", [None, "# No fields", "---\nlicense: other\n---\n", "---\ntags: x\n---\nlicense: mit\n"]
)
def test_a_model_without_a_known_licence_is_not_packaged(model: Path, card: str | None) -> None:
    if card is not None:
        (model / "README.md").write_text(card)
    with pytest.raises(OptionError, match="licence of .* is not known") as caught:
        made(model, PackageOptions(name="bear"))
    assert "--license Apache-2.0" in caught.value.remedy
    assert not (model.parent / "dist").exists()


def test_a_licence_without_an_spdx_name_needs_its_text(model: Path, tmp_path: Path) -> None:
    (model / "README.md").write_text("---\nlicense: bear2.1\n---\n")
    with pytest.raises(OptionError, match="'bear2.1', is not an SPDX expression") as caught:
        made(model, PackageOptions(name="bear"))
    assert "LicenseRef-NAME --license-file" in caught.value.remedy
    named = PackageOptions(name="bear", license="LicenseRef-bear")
    with pytest.raises(OptionError, match="cannot look up"):
        made(model, named)
    text = tmp_path / "TERMS"
    text.write_text("Be kind to bears.")
    assert metadata(made(model, evolve(named, license_file=text)).path)["License-File"] == "TERMS"


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"name": "bär"}, "cannot be the name"),
        ({"name": "../bear"}, "cannot be the name"),
        ({"name": "bear\nEvil: yes"}, "cannot be the name"),
        ({"version": "one"}, "is not a version"),
        ({"license": "my own"}, "is not an SPDX expression"),
    ],
)
def test_what_indexes_refuse_is_refused_here(model: Path, wrong: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        made(model, evolve(LICENSED, **wrong))


def test_a_wheel_that_is_there_stays(model: Path) -> None:
    first = made(model).path
    before = first.read_bytes()
    with pytest.raises(OptionError, match="exists already"):
        made(model)
    assert first.read_bytes() == before
    assert [file.name for file in first.parent.iterdir()] == [first.name]


def test_a_wheel_is_there_only_when_it_is_complete(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("inferno_convert.wheel.os.replace", full)
    with pytest.raises(WriteError, match="No space left"):
        made(model)
    assert list((model.parent / "dist").iterdir()) == []


def test_what_is_not_a_model_is_not_packaged(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError):
        made(model)
