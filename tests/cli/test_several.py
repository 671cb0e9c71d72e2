"""Two demo engines behind one port, by the commands of the manual."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.cli.conftest import Inferno

FILE = """
port = 0
memory = "1200MiB"
threads = 1
log_format = "json"
max_model_len = 128
max_num_seqs = 2

[models.a]
ref = "demo"

[models.b]
ref = "demo"
aliases = ["bee"]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    (tmp_path / "inferno.toml").write_text(FILE)
    command = [sys.executable, "-m", "inferno", "serve", "--config", "inferno.toml"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr
    output = ""
    for line in process.stderr:
        output += line
        assert line.startswith("{"), "a collector reads JSON, and nothing else"
        if match := re.search(r"serving a at (http://\S+)/v1", line):
            yield process, match[1]
            break
    else:
        pytest.fail(output)
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_two_engines_are_loaded_used_and_unloaded(
    server: tuple[subprocess.Popen[str], str], inferno: Inferno
) -> None:
    process, url = server
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    answers = [
        httpx.post(f"{url}/v1/chat/completions", json={**body, "model": name}, timeout=120).json()
        for name in ("a", "bee", "a")
    ]
    assert [answer["model"] for answer in answers] == ["a", "bee", "a"]
    assert answers[0]["choices"] == answers[2]["choices"] == answers[1]["choices"]

    shown = json.loads(inferno("ps", "--url", url, "--json").stdout)["models"]
    assert [(m["name"], m["status"], m["device"]) for m in shown] == [
        ("a", "loaded", "cpu"),
        ("b", "loaded", "cpu"),
    ]
    assert inferno("unload", "bee", "--url", url).stdout == "b: unloaded\n"
    table = inferno("ps", "--url", url).stdout
    assert re.search(r"^a +loaded .*\nb, bee +unloaded ", table, re.MULTILINE)
    wrong = inferno("load", "c", "--url", url)
    assert wrong.returncode == 1
    assert "the server answers 404" in wrong.stderr and "a, b, bee" in wrong.stderr

    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    lines = [json.loads(line) for line in rest.splitlines() if line.startswith("{")]
    messages = [line["message"] for line in lines]
    assert "b: unloaded" in messages and "a: unloaded" in messages
    assert sum(message == "POST /v1/chat/completions" for message in messages) == 3


def test_no_server_is_one_line_of_cause_and_one_of_remedy(inferno: Inferno) -> None:
    done = inferno("ps", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: no inferno server answers at")
    assert "inferno serve" in done.stderr
    assert "not a server's URL" in inferno("ps", "--url", "localhost").stderr
