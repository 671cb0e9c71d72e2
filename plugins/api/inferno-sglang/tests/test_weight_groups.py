"""Weights that a trainer sends through a process group, in the calls of SGLang's clients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file
from tests.peft_adapters import matrices, pairs, write_merged
from tests.server.conftest import Live
from torch.distributed.distributed_c10d import _new_process_group_helper

from inferno.llm import AsyncLLM
from inferno.plan import resolve
from inferno.testing import alike

PROMPT = [5 + 7 * i % 90 for i in range(40)]
LIMIT = timedelta(seconds=60)


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4}
    live = Live(AsyncLLM("demo", **options, memory="1GiB"))  # type: ignore[arg-type]
    yield httpx.Client(base_url=live.url, timeout=120)
    live.stop()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def place(port: int) -> dict[str, Any]:
    """The body of a call to join the group of a trainer at a port."""
    here = {"master_address": "127.0.0.1", "master_port": port, "backend": "gloo"}
    return {**here, "rank_offset": 1, "world_size": 2}


def lead(port: int, name: str) -> Any:
    """Return a process group of which this process is rank 0, made as trainers make it."""
    distributed: Any = torch.distributed
    store = distributed.TCPStore("127.0.0.1", port, 2, is_master=True, timeout=LIMIT)
    prefixed = distributed.PrefixStore(name, store)
    options: dict[str, Any] = {"group_name": name, "timeout": LIMIT}
    backend = distributed.Backend("gloo")
    return _new_process_group_helper(2, 0, [], backend, prefixed, **options)[0]


class Trainer:
    """Rank 0 of a group, and its calls."""

    def __init__(self, server: httpx.Client, name: str) -> None:
        self.server, self.name, self.pool = server, name, ThreadPoolExecutor(1)
        port = free_port()
        joined = self.call("init_weights_update_group", **place(port))
        self.group = lead(port, name)
        assert joined.result().json()["success"], joined.result().text

    def call(self, path: str, **body: Any) -> Future[httpx.Response]:
        return self.pool.submit(
            self.server.post, f"/{path}", json={"group_name": self.name, **body}
        )

    def send(self, tensors: Mapping[str, torch.Tensor], **more: Any) -> httpx.Response:
        """Send tensors, in one call."""
        described = {
            "names": list(tensors),
            "dtypes": [str(tensor.dtype) for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
        }
        answer = self.call("update_weights_from_distributed", **described, **more)
        for tensor in tensors.values():
            self.group.broadcast(tensor.contiguous(), root=0).wait()
        return answer.result()

    def leave(self) -> httpx.Response:
        return self.call("destroy_weights_update_group").result()


def generate(server: httpx.Client) -> tuple[list[int], str]:
    sampling = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}
    answer = server.post("/generate", json={"input_ids": PROMPT, "sampling_params": sampling})
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["output_ids"]
    return ids, answer.json()["meta_info"]["weight_version"]


@alike
@pytest.mark.parametrize(
    "how",
    [
        "in a pause",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("at once", "in parts")),
    ],
)
def test_weights_of_a_process_group_answer_as_the_same_weights_of_a_file(
    server: httpx.Client, tmp_path: Path, how: str
) -> None:
    model = Path(resolve("demo").path)
    merged = write_merged(model, tmp_path / "other", pairs(matrices(model), 1, 8))
    original, other = (load_file(each / "model.safetensors") for each in (model, merged))
    body = {"model_path": str(merged), "weight_version": "file"}
    assert server.post("/update_weights_from_disk", json=body).json()["success"]
    expected, _ = generate(server)
    trainer = Trainer(server, f"group {how}")
    changed = [name for name in other if not torch.equal(other[name], original[name])]
    half = len(changed) // 2
    for weights, version in ((original, "back"), (other, "there")):
        if how == "in a pause":
            server.post("/pause_generation", json={"mode": "retract"})
        for names in (changed[:half], changed[half:]):
            is_last = names[-1] == changed[-1]
            more = {"flush_cache": is_last} if how == "in parts" else {}
            answer = trainer.send(
                {name: weights[name] for name in names}, weight_version=version, **more
            )
            assert answer.json()["success"], answer.text
            at_once = how == "at once" or (how == "in parts" and is_last)
            assert answer.json().get("weight_version") == (version if at_once else None)
        if how == "in a pause":
            refused = trainer.leave()
            assert refused.status_code == 400 and "not loaded" in refused.json()["message"]
            assert server.get("/weight_version").json()["weight_version"] != version
            server.post("/continue_generation")
        tokens, told = generate(server)
        assert told == version and (tokens == expected) == (version == "there")
    assert trainer.leave().json()["success"]
    assert trainer.leave().status_code == 400  # there is none any more


@pytest.mark.slow
def test_tensors_that_do_not_fit_change_nothing(server: httpx.Client) -> None:
    before = generate(server)
    trainer = Trainer(server, "wrong")
    wrong = {"no.such.weight": torch.ones(2, 3)}
    refused = trainer.send(wrong)
    assert refused.status_code == 400 and "no.such.weight" in refused.json()["message"]
    server.post("/pause_generation", json={"mode": "retract"})
    assert trainer.send(wrong).json()["success"]  # what it says is received, not loaded
    refused = server.post("/continue_generation")
    assert refused.status_code == 400 and "no.such.weight" in refused.text
    assert server.get("/is_paused").json()["is_paused"]
    assert server.post("/continue_generation").status_code == 200
    assert generate(server) == before


@pytest.mark.slow
def test_a_trainer_that_is_killed_ends_the_group_and_nothing_else(server: httpx.Client) -> None:
    before = generate(server)
    port = free_port()
    code = f"import time, test_weight_groups as t; t.lead({port}, 'killed'); time.sleep(600)"
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    where = Path(__file__).parent
    with subprocess.Popen(command, cwd=where, env={**os.environ, **paths}) as trainer:
        group = {"group_name": "killed"}
        joined = server.post("/init_weights_update_group", json={**group, **place(port)})
        assert joined.json()["success"], joined.text
        trainer.kill()
    body: dict[str, Any] = {**group, "names": ["a"], "dtypes": ["float32"], "shapes": [[4]]}
    for reason in ("the process group 'killed'", "there is no process group"):
        refused = server.post("/update_weights_from_distributed", json=body)
        assert refused.status_code == 400 and reason in refused.json()["message"]
    assert generate(server) == before


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("init_weights_update_group", {"rank_offset": 0}, "rank_offset"),
        ("init_weights_update_group", {"rank_offset": 2}, "rank_offset"),
        ("init_weights_update_group", {"master_port": 0}, "master_port"),
        ("init_weights_update_group", {"backend": "mpi"}, "gloo or nccl"),
        ("update_weights_from_distributed", {"names": []}, "0 names"),
        ("update_weights_from_distributed", {"dtypes": ["int8"]}, "int8"),
        ("update_weights_from_distributed", {"shapes": [[-1]]}, "shape"),
        ("update_weights_from_distributed", {}, "no process group"),
        ("update_weights_from_distributed", {"load_format": "flattened_bucket"}, "load_format"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_it(
    server: httpx.Client, path: str, body: dict[str, Any], said: str
) -> None:
    whole: dict[str, Any] = (
        place(1)
        if path.startswith("init")
        else {"names": ["a"], "dtypes": ["float32"], "shapes": [[2]]}
    )
    answer = server.post(f"/{path}", json={**whole, **body})
    assert answer.status_code == 400 and said in answer.text
