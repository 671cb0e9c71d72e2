"""A lock is served as the plan was that it holds, whatever reference the plan was made for."""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve
from tests.hub_stand_in import SHA, Hub, stand_in
from tests.tiny_served import OPTIONS, llm_of, serving_llm, write

from inferno.cli import lock, render
from inferno.contracts import WriteOptions
from inferno.errors import CheckpointError
from inferno.plan import Options, reopen, resolve
from inferno_convert.convert import convert

pytest.importorskip("inferno_gguf", reason="needs inferno-gguf")

MODEL = "model"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands run, with one model in it."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / MODEL)
    return tmp_path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with stand_in(tmp_path, monkeypatch) as hub:
        yield hub


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def is_served(ref: str, options: Options = OPTIONS) -> None:
    """Lock the plan for `ref`, and ask a server that runs the lock."""
    lock.write(resolve(ref, options))
    llm = llm_of(reopen(lock.read(ref, {})))
    with serving_llm(llm) as http:
        body = {"messages": [{"role": "user", "content": "Is it?"}], "max_tokens": 2}
        answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("split", [None, 20_000])
def test_a_folder_of_safetensors_in_one_file_or_several(folder: Path, split: int | None) -> None:
    convert(MODEL, "safetensors", folder / "copy", WriteOptions(split=split))
    assert (len(list((folder / "copy").glob("*.safetensors"))) > 1) == (split is not None)
    is_served("copy")


def test_a_gguf_file(folder: Path) -> None:
    convert(MODEL, "q8_0", folder / "model.gguf")
    is_served("model.gguf")


@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_gguf_model_in_several_files(folder: Path, named: str) -> None:
    (folder / "split").mkdir()
    convert(MODEL, "f32", folder / "split" / "model.gguf", WriteOptions(split=40_000))
    files = sorted((folder / "split").glob("*.gguf"))
    assert len(files) > 1
    is_served(f"split/{files[-1].name}" if named == "file" else "split")


def test_the_model_of_a_package(folder: Path) -> None:
    pytest.importorskip("inferno_demo", reason="needs inferno-demo")
    is_served("demo")


@pytest.mark.parametrize("ref", ["toys/bear", f"toys/bear@{SHA}", "toys/bear/model.gguf"])
def test_a_model_of_the_hub_whole_or_one_file(folder: Path, hub: Hub, ref: str) -> None:
    convert(MODEL, "f32", folder / "model.gguf")
    hub.repos["toys/bear"] = contents(folder / MODEL) | {
        "model.gguf": (folder / "model.gguf").read_bytes()
    }
    is_served(ref)


def installed(site: Path, version: str) -> None:
    """Write the model and its metadata as pip would install them from a wheel."""
    digest = {
        file.name: base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode()
        for file in (site / "bear").iterdir()
    }
    for old in site.glob("*.dist-info"):
        shutil.rmtree(old)
    info = site / f"bear-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bear\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"bear/{f},sha256={d},\n" for f, d in digest.items()))


def test_the_model_of_an_installed_package_and_no_other_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("inferno_package", reason="needs inferno-package")
    site = folder / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    shutil.copytree(folder / MODEL, site / "bear")
    installed(site, "1.2")

    is_served("package:bear")
    plan = lock.read("package:bear", {})
    assert plan.origin is not None and (plan.origin.name, plan.origin.version) == ("bear", "1.2")
    assert set(plan.origin.files) == {f"bear/{name}" for name in contents(folder / MODEL)}
    assert "package: bear 1.2, " in render.explained(plan)

    installed(site, "1.3")
    with pytest.raises(CheckpointError, match="made for bear 1.2, and bear 1.3 is here"):
        reopen(plan)
    (site / "bear" / "generation_config.json").write_text("{}")
    installed(site, "1.2")
    with pytest.raises(CheckpointError, match="made for bear 1.2, whose files have changed"):
        reopen(plan)
    other = resolve(MODEL, evolve(OPTIONS, overrides=("model.layers.0.*=package:bear",)))
    installed(site, "1.4")
    with pytest.raises(CheckpointError, match="and bear 1.4 is here"):
        reopen(other)


def test_a_draft_model_and_matrices_of_another_file(folder: Path) -> None:
    convert(MODEL, "f32", folder / "model.gguf")
    is_served(MODEL, evolve(OPTIONS, speculative="model.gguf"))
    is_served("model.gguf", evolve(OPTIONS, overrides=("model.layers.0.*=model",)))
