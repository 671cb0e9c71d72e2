"""Adapters of a server: named as models, loaded and unloaded while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.peft_adapters import matrices, pairs, write_peft
from tests.server.conftest import Live

from inferno.llm import AsyncLLM
from inferno.plan import resolve

PROMPT = [5 + 7 * i % 90 for i in range(40)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root, model = tmp_path_factory.mktemp("adapters"), Path(resolve("demo").path)
    return [write_peft(root / str(i), pairs(matrices(model), i, 4)) for i in range(2)]


@pytest.fixture(scope="module")
def server(folders: list[Path]) -> Iterator[httpx.Client]:
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4}
    llm = AsyncLLM("demo", loras={"first": str(folders[0])}, max_loras=2, **options)
    server = Live(llm)  # type: ignore[arg-type]
    yield httpx.Client(base_url=server.url, timeout=60)
    server.stop()


def answer(server: httpx.Client, model: str, path: str = "/v1/completions") -> Any:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 1}
    return server.post(path, json={**body, "ignore_eos": True})


def text(server: httpx.Client, model: str) -> str:
    response = answer(server, model)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == model
    return str(response.json()["choices"][0])


def load(server: httpx.Client, name: str, path: Path, **more: str) -> Any:
    body = {"lora_name": name, "lora_path": str(path), **more}
    return server.post("/v1/load_lora_adapter", json=body)


def cards(server: httpx.Client) -> dict[str, Any]:
    return {card["id"]: card for card in server.get("/v1/models").json()["data"]}


def test_adapters_are_models_that_have_a_parent(server: httpx.Client, folders: list[Path]) -> None:
    by_name = cards(server)
    assert by_name["first"]["parent"] == "demo" and "parent" not in by_name["demo"]
    assert by_name["first"]["root"] == str(folders[0])
    assert server.get("/v1/models/first").json()["parent"] == "demo"
    assert text(server, "first") != text(server, "demo")


def test_adapters_are_loaded_replaced_and_unloaded(
    server: httpx.Client, folders: list[Path]
) -> None:
    base, first = text(server, "demo"), text(server, "first")
    assert answer(server, "mine").status_code == 404
    loaded = load(server, "mine", folders[1], base_model_name="demo")
    assert loaded.status_code == 200, loaded.text
    assert loaded.json()["parent"] == "demo" and loaded.json()["rank"] == 4
    second = text(server, "mine")
    assert len({base, first, second}) == 3
    load(server, "mine", folders[0])
    assert text(server, "mine") == first
    assert server.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).json()["deleted"]
    assert answer(server, "mine").status_code == 404 and "mine" not in cards(server)
    gone = server.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})
    assert gone.status_code == 404
    assert text(server, "demo") == base


@pytest.mark.slow
def test_adapters_that_cannot_be_loaded_are_errors_of_the_request(
    server: httpx.Client, tmp_path: Path
) -> None:
    path, (a, b) = next(iter(pairs(matrices(Path(resolve("demo").path)), 1, 4).items()))
    foreign = write_peft(tmp_path / "foreign", {path: (torch.ones(4, 3), b)})
    broken = write_peft(tmp_path / "broken", {path: (a * float("nan"), b)})
    for folder, message in ((foreign, "another model"), (broken, "not finite"), (tmp_path, "")):
        response = load(server, "hostile", folder)
        assert response.status_code == 400, response.text
        assert message in response.json()["error"]["message"]
    assert load(server, "hostile", tmp_path / "nothing").status_code in (400, 404)
    assert "hostile" not in cards(server)
    taken = load(server, "demo", foreign)
    assert taken.status_code == 400 and "cannot be called" in taken.json()["error"]["message"]
