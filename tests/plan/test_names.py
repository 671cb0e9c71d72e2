"""The name that a model gets from its reference."""

from __future__ import annotations

from pathlib import Path

from inferno.plan.names import model_name


def test_a_reference_that_is_no_path_is_the_name() -> None:
    assert model_name("org/name") == "org/name"


def test_a_file_has_its_name_without_the_number_of_its_part(tmp_path: Path) -> None:
    for name in ("toy.gguf", "toy-00001-of-00002.gguf", "toy-00001-of-00002.safetensors"):
        (tmp_path / name).touch()
        assert model_name(str(tmp_path / name)) == "toy"


def test_a_folder_has_its_own_name_and_one_of_the_hub_its_repositorys(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--a--name" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    assert model_name(str(tmp_path)) == tmp_path.name
    assert model_name(str(snapshot)) == "org/a--name"
