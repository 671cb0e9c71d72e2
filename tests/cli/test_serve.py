"""`inferno serve` on the demo model: flags reach the server, start-up says what runs, Ctrl-C ends
it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

KEY = {"Authorization": "Bearer sesame"}
FLAGS = [
    "--port",
    "0",
    "--served-model-name",
    "toy",
    "--api-key",
    "sesame",
    "--strict-params",
    "--max-num-seqs",
    "3",
    "--cors-origin",
    "https://chat.example.org",
    "--allowed-hosts",
    "127.0.0.1",
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its url, and what it said until it served."""
    command = [sys.executable, "-m", "inferno", "serve", "demo", *FLAGS]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr
    output = ""
    for line in process.stderr:
        output += line
        if match := re.match(r"Serving at (http://\S+)/v1", line):
            yield process, match[1], output
            break
    else:
        pytest.fail(output)
    process.kill()
    process.communicate()


def test_flags_reach_the_server_and_ctrl_c_ends_it(
    server: tuple[subprocess.Popen[str], str, str],
) -> None:
    process, url, output = server
    assert [
        word
        for word in ("model", "weights", "attention", "memory", "start", "inferno-qwen3")
        if word not in output
    ] == []

    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert [model["id"] for model in httpx.get(f"{url}/v1/models", headers=KEY).json()["data"]] == [
        "toy"
    ]
    body = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    answer = httpx.post(f"{url}/v1/chat/completions", headers=KEY, json=body, timeout=60).json()
    assert answer["usage"]["completion_tokens"] <= 2
    assert (
        httpx.post(f"{url}/v1/chat/completions", headers=KEY, json={**body, "whim": 1}).status_code
        == 400
    )

    page = {"Origin": "https://chat.example.org", "Access-Control-Request-Method": "POST"}
    assert httpx.options(f"{url}/v1/chat/completions", headers=page).status_code == 204
    assert httpx.get(f"{url}/health", headers={"Host": "localhost"}).status_code == 403

    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in rest


@pytest.mark.slow
def test_a_port_in_use_is_said_before_anything_loads(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [
            sys.executable,
            "-m",
            "inferno",
            "serve",
            "demo",
            "--port",
            str(taken.getsockname()[1]),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: port ") and "--port 0" in done.stderr
