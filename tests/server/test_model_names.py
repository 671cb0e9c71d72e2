"""What a model is called, if nobody named it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.server_fakes import FakeLLM

from inferno.plan.names import model_name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M.Q4_1"),
        ("a/big-00001-of-00003.gguf", "big"),
        ("a/Qwen3-0.6B/config.json", "config"),
    ],
)
def test_a_file_is_called_without_its_ending(tmp_path: Path, path: str, name: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.touch()
    assert model_name(str(file)) == name


def test_a_folder_is_called_as_it_is_and_a_hub_s_snapshot_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "c1899de2"
    snapshot.mkdir(parents=True)
    assert model_name(str(snapshot)) == "Qwen/Qwen3-0.6B"
    folder = tmp_path / "Qwen3"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert [model_name(ref) for ref in (f"{folder}/", ".", "../Qwen3")] == ["Qwen3"] * 3
    assert model_name("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_clients_may_name_a_model_by_its_reference_too(client: object) -> None:
    http = client(FakeLLM())  # type: ignore[operator]
    answer = http.post("/v1/completions", json={"model": "models/fake", "prompt": "x"})
    assert answer.status_code == 200
    [card] = http.get("/v1/models").json()["data"]
    assert (card["id"], card["root"]) == ("fake", "models/fake")
