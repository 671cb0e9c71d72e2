"""The hub source against a local stand-in of the hub's API: real HTTP, the real client, no
network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.hub_stand_in import TOKEN, Hub, stand_in

from inferno.builtin.sources import HUB, LOCAL
from inferno.catalog import load_catalog
from inferno.contracts import FetchOptions, encoders_beside
from inferno.errors import InfernoError, ModelNotFoundError, OptionError
from inferno.testing import SourceTests

MODEL = {
    "config.json": b'{"architectures": ["Toy"]}',
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": b"{}",
    "model-00001-of-00002.safetensors": b"first" * 1000,
    "model-00002-of-00002.safetensors": b"second" * 1000,
    "pytorch_model.bin": b"the same again",
    "consolidated.safetensors": b"the same again",
    "onnx/config.json": b"{}",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with stand_in(tmp_path, monkeypatch) as hub:
        yield hub


def fetch(ref: str, **options: Any) -> Path:
    assert HUB.matches(ref)
    path = HUB.fetch(ref, FetchOptions(**options))
    assert isinstance(path, Path)
    return path


class TestHub(SourceTests):
    source = "hub"
    missing = "toys/absent"
    foreign = ("toys/bear/../../../etc/passwd", "toys/../bear", "./toys/bear", "bear", "a/b@")

    @pytest.fixture
    def ref(self, hub: Hub) -> str:
        hub.repos["toys/bear"] = MODEL
        return "toys/bear"


class TestLocal(SourceTests):
    source = "local"
    foreign = ("toys/absent",)

    @pytest.fixture
    def ref(self, tmp_path: Path) -> str:
        (tmp_path / "bear").mkdir()
        return str(tmp_path / "bear")


def test_a_sharded_model_comes_without_the_copies_in_other_formats(hub: Hub) -> None:
    hub.repos["toys/bear"] = MODEL

    path = fetch("toys/bear")

    assert {p.name for p in path.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    assert (path / "model-00002-of-00002.safetensors").read_bytes() == MODEL[
        "model-00002-of-00002.safetensors"
    ]
    assert HUB.list() == ["toys/bear"]


def test_what_is_here_is_not_fetched_again(hub: Hub) -> None:
    hub.repos["toys/bear"] = MODEL
    first = fetch("toys/bear")
    hub.asked.clear()

    assert fetch("toys/bear") == first
    assert hub.downloads() == []


def test_an_interrupted_download_goes_on_with_the_missing_files(hub: Hub) -> None:
    hub.repos["toys/bear"] = MODEL
    path = fetch("toys/bear")
    (path / "model-00002-of-00002.safetensors").resolve().unlink()
    (path / "model-00002-of-00002.safetensors").unlink()
    hub.asked.clear()

    fetch("toys/bear")

    assert hub.downloads() == ["model-00002-of-00002.safetensors"]


def test_offline_a_missing_model_says_which_command_gets_it(hub: Hub) -> None:
    hub.repos["toys/bear"] = MODEL

    with pytest.raises(ModelNotFoundError) as caught:
        fetch("toys/bear@main", offline=True)

    assert "offline" in caught.value.cause
    assert "`inferno pull toys/bear --revision main`" in caught.value.remedy
    assert hub.asked == []


def test_the_client_s_own_offline_variable_counts(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE"):
        fetch("toys/bear")


def test_one_file_of_a_repository_comes_alone(hub: Hub) -> None:
    hub.repos["toys/bear"] = {"q4/bear.gguf": b"GGUF", "q8/bear.gguf": b"GGUF8", **MODEL}

    path = fetch("toys/bear/q4/bear.gguf")

    assert path.read_bytes() == b"GGUF"
    assert hub.downloads() == ["q4/bear.gguf"]


def test_a_split_file_comes_whole_by_any_of_its_parts(hub: Hub) -> None:
    parts = [f"q4/bear-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hub.repos["toys/bear"] = {part: part.encode() for part in parts} | {
        "q4/bear-00001-of-00002.gguf": b"other"
    }

    path = fetch(f"toys/bear/{parts[1]}")

    assert path.name == "bear-00002-of-00003.gguf" and hub.downloads() == parts
    with pytest.raises(ModelNotFoundError, match="not a valid part"):
        fetch("toys/bear/bear-00009-of-00003.gguf")


def test_a_file_comes_with_the_encoder_beside_it(hub: Hub) -> None:
    """The best of several, and none from elsewhere in the repository."""
    encoders = [f"q4/mmproj-bear-{kind}.gguf" for kind in ("Q8_0", "F32", "f16")]
    files = ["q4/bear.gguf", "mmproj-F16.gguf", *encoders]
    hub.repos["toys/bear"] = {name: name.encode() for name in files}
    path = fetch("toys/bear/q4/bear.gguf")
    assert path.with_name("mmproj-bear-f16.gguf").exists()
    assert hub.downloads() == ["q4/bear.gguf", "q4/mmproj-bear-f16.gguf"]
    fetch("toys/bear/q4/mmproj-bear-F32.gguf")
    assert hub.downloads()[2:] == ["q4/mmproj-bear-F32.gguf"]


def test_the_encoder_of_a_model_in_parts_may_be_in_the_folder_above(hub: Hub) -> None:
    parts = [f"q4/bear-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.repos["toys/bear"] = {name: name.encode() for name in (*parts, "mmproj-F16.gguf")}
    fetch(f"toys/bear/{parts[0]}", encoder=False)
    assert hub.downloads() == parts
    fetch(f"toys/bear/{parts[0]}")
    assert hub.downloads() == [*parts, "mmproj-F16.gguf"]


def test_encoders_that_share_the_model_s_name_come_first() -> None:
    beside = ["a/mmproj-cat-F16.gguf", "a/mmproj-Bear-7B-Q8_0.gguf", "a/mmproj-BF16.gguf", "a/x"]
    assert encoders_beside("a/bear-7b-instruct-Q4_K_M.gguf", beside) == [
        "a/mmproj-BF16.gguf",
        "a/mmproj-Bear-7B-Q8_0.gguf",
        "a/mmproj-cat-F16.gguf",
    ]
    assert encoders_beside("bear-7b.gguf", beside) == []


def test_a_missing_file_names_its_neighbours(hub: Hub) -> None:
    hub.repos["toys/bear"] = {"bear-q4.gguf": b"GGUF"}

    with pytest.raises(ModelNotFoundError) as caught:
        fetch("toys/bear/bear-q5.gguf")

    assert caught.value.cause == "toys/bear has no file bear-q5.gguf"
    assert "toys/bear/bear-q4.gguf" in caught.value.remedy


def test_a_repository_without_safetensors_names_what_it_has(hub: Hub) -> None:
    hub.repos["toys/bear"] = {"config.json": b"{}", "bear-q4.gguf": b"GGUF"}

    with pytest.raises(ModelNotFoundError) as caught:
        fetch("toys/bear")

    assert "no safetensors" in caught.value.cause
    assert "toys/bear/bear-q4.gguf" in caught.value.remedy


def test_an_unknown_model_names_the_nearest_on_this_machine(hub: Hub) -> None:
    hub.repos["toys/bear"] = MODEL
    fetch("toys/bear")

    with pytest.raises(ModelNotFoundError) as caught:
        fetch("toys/beer")

    assert "no model toys/beer" in caught.value.cause
    assert "toys/bear" in caught.value.remedy
    assert caught.value.exit_code == 3


def test_an_unknown_revision_is_named(hub: Hub) -> None:
    hub.repos["toys/bear"] = MODEL
    with pytest.raises(ModelNotFoundError, match="no revision v9"):
        fetch("toys/bear", revision="v9")


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_a_gated_model_asks_for_a_token(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    hub.repos["toys/secret"] = MODEL
    hub.gated.add("toys/secret")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)

    with pytest.raises(ModelNotFoundError) as caught:
        fetch("toys/secret")

    assert "gated" in caught.value.cause
    assert "HF_TOKEN" in caught.value.remedy and f"{hub.url}/toys/secret" in caught.value.remedy


def test_a_token_from_its_usual_place_opens_a_gated_model(hub: Hub, tmp_path: Path) -> None:
    hub.repos["toys/secret"] = MODEL
    hub.gated.add("toys/secret")
    (tmp_path / "token").write_text(TOKEN)

    assert (fetch("toys/secret") / "config.json").exists()


def test_a_broken_hub_is_no_missing_model_once_the_model_is_here(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library waits for 23 s before it gives up.
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda s: None))
    hub.repos["toys/bear"] = MODEL
    path = fetch("toys/bear")
    hub.broken = True

    assert fetch("toys/bear") == path
    for ref in ("toys/other", "toys/other/model.gguf"):
        with pytest.raises(InfernoError, match="answered 502 for toys/other") as caught:
            fetch(ref)
        assert not isinstance(caught.value, ModelNotFoundError)


@pytest.mark.parametrize("silent", ["/", "/tree/"])
@pytest.mark.parametrize(
    "ref", [pytest.param("toys/other", marks=pytest.mark.slow), "toys/other/model.gguf"]
)
def test_a_hub_that_never_answers_cannot_be_reached(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, silent: str, ref: str
) -> None:
    monkeypatch.setattr("inferno.builtin.sources.PATIENCE", 0.2)
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda s: None))
    hub.repos["toys/other"], hub.silent = MODEL, silent

    with pytest.raises(ModelNotFoundError, match="cannot be reached|has no file"):
        fetch(ref)


@pytest.mark.parametrize("ref", ["toys/bear", "toys/bear/config.json"])
def test_what_is_here_is_taken_from_a_hub_that_never_answers(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ref: str
) -> None:
    monkeypatch.setattr("inferno.builtin.sources.PATIENCE_IF_HERE", 0.2)
    hub.repos["toys/bear"] = MODEL
    path = fetch(ref)
    hub.silent = "/"
    hub.asked.clear()

    assert fetch(ref) == path
    assert len(hub.asked) == 1 and "does not answer" in caplog.text


def test_a_hub_without_an_address_is_one_that_cannot_be_reached(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFoundError, match="cannot be reached"):
        fetch("toys/other")


@pytest.mark.parametrize(
    "name", ["../../../evil.json", "/tmp/evil.json", "..\\evil.json", "a/../../evil.json"]
)
def test_hostile_file_names_write_nothing_outside_the_cache(
    hub: Hub, tmp_path: Path, name: str
) -> None:
    hub.repos["toys/trap"] = {"model.safetensors": b"x", name: b"evil"}

    try:
        fetch("toys/trap")
    except InfernoError:
        pass  # refused: as good as left out

    inside = tmp_path / "hub" / "models--toys--trap"
    assert [p for p in tmp_path.rglob("*evil*") if inside not in p.parents] == []
    assert not Path("/tmp/evil.json").exists()


def test_progress_bars_are_drawn_only_when_asked_for(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TQDM_POSITION", "-1")  # draws even where there is no terminal
    hub.repos.update({"toys/bear": MODEL, "toys/cat": MODEL})
    fetch("toys/cat")
    assert capfd.readouterr().err == ""
    fetch("toys/bear", progress=True)  # second: a bar may be drawn once more when it is collected
    assert "%" in capfd.readouterr().err


def test_two_revisions_are_one_too_many() -> None:
    with pytest.raises(OptionError):
        HUB.fetch("toys/bear@a", FetchOptions(revision="b"))


def test_a_local_path_is_itself(tmp_path: Path) -> None:
    assert not LOCAL.matches(str(tmp_path / "absent"))
    assert LOCAL.fetch(str(tmp_path), FetchOptions()) == tmp_path


def test_sources_import_neither_torch_nor_the_hub_client() -> None:
    code = (
        "import inferno.builtin.sources, sys; print({'torch', 'huggingface_hub'} & "
        "set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_references_of_a_kind_whose_plugin_is_not_in_use_name_the_plugin() -> None:
    pytest.importorskip("inferno_index", reason="needs inferno-index")
    catalog = load_catalog(disable=("package",))
    with pytest.raises(ModelNotFoundError, match="no model 'package:toy-bear'") as caught:
        catalog.source_of("package:toy-bear")
    assert caught.value.remedy.startswith("inferno-package has it and is switched off")
