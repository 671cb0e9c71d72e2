"""Ranks on a Ray cluster of one machine, with real actors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferno.contracts import Executor
from inferno.testing import MachineExecutorTests

CODE = """
import os, signal, sys, threading
from pathlib import Path
from inferno import LLM, SamplingParams
from inferno.errors import EngineDeadError

options = dict(device="cpu", dtype="float32", max_model_len=1024, threads=1)
params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
seeded = SamplingParams(temperature=0.9, seed=3, max_tokens=24, ignore_eos=True)


def answers(llm):
    asked = ["One", "Two and"]
    return [o.outputs[0].text for p in (params, seeded) for o in llm.generate(asked, p)]


with LLM("demo", **options) as llm:
    wanted = answers(llm)
shared = dict(tp=2, nodes=2, executor="ray", rank_host="127.0.0.1", rank_port=int(sys.argv[1]))
shared["rank_token_file"] = sys.argv[2]
with LLM("demo", **options, **shared) as llm:
    assert answers(llm) == wanted, "other tokens"
    [joined] = [
        int(file.parent.name)
        for file in Path("/proc").glob("[0-9]*/cmdline")
        if b"127.0.0.1:" + sys.argv[1].encode() in file.read_bytes()
    ]
    threading.Timer(0.3, os.kill, (joined, signal.SIGKILL)).start()
    try:
        llm.generate(["One"], SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True))
        raise SystemExit("nothing was told")
    except EngineDeadError as error:
        print("told:", error.cause)
with LLM("demo", **options, **shared) as llm:
    assert answers(llm) == wanted, "other tokens after a failure"
print("right")
"""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of this machine. To start it takes 40 s where cores are busy; Ray gives up after
    30."""
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("RAY_raylet_start_wait_time_s", "200")
        environ.setenv("RAY_AUTH_MODE", "token")
        ray = pytest.importorskip("ray", reason="Ray is large: pip install ray")
        ray.init(
            num_cpus=4,
            num_gpus=2,  # Ray only counts them
            object_store_memory=80_000_000,
            log_to_driver=False,
            include_dashboard=False,
        )
        yield
        ray.shutdown()


class TestRay(MachineExecutorTests):
    executor = "ray"

    def test_what_is_ended_gives_its_room_back(self, item: Executor) -> None:
        """A program that loads one engine after another is one driver: nothing else frees it."""
        for _ in range(6):  # of a cluster that has room for four
            [process] = self.start(item, self.asked("import time; time.sleep(600)"))
            process.kill()

    def test_a_machine_has_as_many_gpus_as_ranks(self, item: Executor, tmp_path: Path) -> None:
        code = (
            "import pathlib, sys; from os import environ;"
            "pathlib.Path(sys.argv[1]).write_text(environ['CUDA_VISIBLE_DEVICES'])"
        )
        seen = tmp_path / "seen"
        [process] = self.start(item, self.asked(code, str(seen), gpus=2))
        process.wait()
        process.kill()
        assert sorted(seen.read_text().split(",")) == ["0", "1"]
        with pytest.raises(OSError, match="no room for 1 times 1 CPUs and 3 GPUs"):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr("inferno_ray.cluster.ROOM_SECONDS", 1)
                self.start(item, self.asked(code, str(seen), gpus=3))

    def test_a_cluster_without_room_says_so(
        self, item: Executor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("inferno_ray.cluster.ROOM_SECONDS", 1)
        what = self.asked("pass", threads=1000)
        assert item.machines is not None
        with pytest.raises(OSError, match="no room for 1 times 1000 CPUs"):
            item.machines(what)


@pytest.mark.slow
def test_actors_give_the_tokens_of_one_process_and_a_killed_one_is_told(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    token = tmp_path / "token"
    token.write_text("a token of the machines")
    command = [sys.executable, "-c", CODE, str(port), str(token)]
    environ = os.environ | {
        "RAY_ADDRESS": pytest.importorskip("ray").get_runtime_context().gcs_address
    }
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "told: rank 1 of 2" in done.stdout or "told: another machine's process" in done.stdout
    assert done.stdout.endswith("right\n")
