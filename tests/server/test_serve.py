"""`run_server` in a process of its own, as the command line runs it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.server_fakes import FakeLLM

from inferno.server import AddressError, run_server

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.server.server_fakes import FakeLLM
from inferno.server import run_server

class Closes(FakeLLM):
    async def close(self):
        print("closed", flush=True)

llm = Closes(endless=True, delay=0.005)
run_server(llm, port=0, shutdown_seconds={seconds}, ready=lambda url, _: print(url, flush=True))
"""


@pytest.fixture
def process() -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(seconds: float) -> tuple[subprocess.Popen[str], str]:
        script = textwrap.dedent(
            SCRIPT.format(root=str(Path(__file__).parents[2]), seconds=seconds)
        )
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        started.append(child)
        assert child.stdout is not None
        return child, child.stdout.readline().strip()

    yield start
    for child in started:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_port_0_is_reported_as_what_it_became(process: Any) -> None:
    child, url = process(5)
    assert httpx.get(url + "/health").json() == {"status": "ok"}
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)]
)
def test_the_model_is_closed_before_the_signal_ends_the_process(
    process: Any, number: int, code: int
) -> None:
    child, _ = process(5)
    child.send_signal(number)
    assert child.stdout.read().strip() == "closed"
    assert child.wait(20) == code


@pytest.mark.parametrize(
    ("seconds", "tokens", "ending"), [(20, 100, "[DONE]"), (0.3, 10**9, "server_shutting_down")]
)
def test_a_stopping_server_lets_streams_end_or_tells_them(
    process: Any, seconds: float, tokens: int, ending: str
) -> None:
    child, url = process(seconds)
    body = {"prompt": "x", "stream": True, "max_tokens": tokens}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        child.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert ending in rest[-2]
    assert child.wait(20) == -signal.SIGTERM


def test_a_port_in_use_is_one_line_of_cause_and_one_of_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError) as caught:
            run_server(FakeLLM(), port=port)  # type: ignore[arg-type]
    assert caught.value.cause == f"port {port} on 127.0.0.1 is in use"
    assert "--port" in caught.value.remedy
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("host", "port"), [("no.such.host.invalid", 0), ("192.0.2.1", 0), ("127.0.0.1", 99999)]
)
def test_an_address_that_is_not_ours_is_refused(host: str, port: int) -> None:
    with pytest.raises(AddressError, match=host):
        run_server(FakeLLM(), host=host, port=port)  # type: ignore[arg-type]


def test_the_address_is_taken_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(AddressError):
        run_server("no such model", port=taken.getsockname()[1])
