"""The scripts of `benchmarks/` that need no model: each runs, with the smallest sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="they read /proc")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, figure",
    [
        ("host_cost.py --sequences 4 --steps 3 --repeats 1", "| 4 |"),
        ("http_cost.py --requests 4 --tokens 3 --repeats 1", "text, streamed"),
        ("http_latency.py --streams 2 --tokens 5 --rounds 1", "ms a token"),
    ],
)
def test_runs(command: str, figure: str) -> None:
    name, *options = command.split()
    done = subprocess.run(
        [sys.executable, str(FOLDER / name), *options], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert figure in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["address-space", "threads", "descriptors"])
def test_a_server_with_too_little_ends_or_serves(limit: str) -> None:
    command = [sys.executable, str(FOLDER / "limits.py"), "--limits", limit, "--from", "0.9"]
    done = subprocess.run(
        [*command, "--to", "1.1", "--step", "0.2"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{limit} 1.10" in done.stdout or "left out" in done.stdout


@pytest.mark.slow
def test_conversations_with_a_store_survive_kills() -> None:
    command = [sys.executable, str(FOLDER / "soak_stores.py"), "--seconds", "20"]
    done = subprocess.run(
        [*command, "--kill-every", "3"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 of them wrong" in done.stdout


def test_a_server_that_does_not_start_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    soak_stores = pytest.importorskip("soak_stores")
    ended, commands = list[object](), list[tuple[str, ...]]()

    class Server:
        pid = 1

    def serve(*command: str) -> tuple[Server, str, int]:
        commands.append(command)
        if "--decode-with" in command:
            raise SystemExit("the server did not start")
        return Server(), "", 2

    monkeypatch.setattr(soak_stores, "serve", serve)
    monkeypatch.setattr(soak_stores, "known", lambda url: [])
    monkeypatch.setattr(soak_stores, "end", ended.append)
    with pytest.raises(SystemExit, match="did not start"):
        soak_stores.main(["--apart"])
    assert len(ended) == 2 and len(commands) == 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_stopped_stage_is_told_to_streams_and_the_next_answer_is_right() -> None:
    pytest.importorskip("inferno_demo")
    command = [sys.executable, str(FOLDER / "soak_ranks.py"), "--seconds", "15", "--stop"]
    done = subprocess.run(
        [*command, "--kill-every", "2", "--within", "60", "--", "--pp", "2"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 faults" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("points", ["--kills 8", "--full 20"])
def test_nothing_that_was_accepted_is_lost(points: str) -> None:
    """Where a server is killed, or its disk is full, at random moments."""
    pytest.importorskip("inferno_demo")
    command = [sys.executable, str(FOLDER / "crashes.py"), *points.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    if "no file system can be mounted" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 lost" in done.stdout
