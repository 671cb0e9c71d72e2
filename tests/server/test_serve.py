"""`run_server` in a process of its own, as the command line runs it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from tests.server.server_fakes import FakeLLM

from inferno.cli import cli
from inferno.cli.remote import RemoteModel
from inferno.errors import OptionError
from inferno.server import AddressError, run_server
from inferno.testing import alike

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.server.server_fakes import FakeLLM
from inferno.server import run_server
from inferno.server.observe import logs

class Closes(FakeLLM):
    async def close(self):
        print("closed", flush=True)

if {log}:
    logs.set_up(stream=sys.stdout)
llm = Closes(endless=True, delay=0.005)
def ready(url, _):
    print(url, flush=True)

run_server(llm, port=0, shutdown_seconds={seconds}, ready=ready, **{options!r})
"""


@pytest.fixture
def process() -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(
        seconds: float, *, log: bool = False, **options: Any
    ) -> tuple[subprocess.Popen[str], str]:
        root = str(Path(__file__).parents[2])
        script = textwrap.dedent(
            SCRIPT.format(root=root, seconds=seconds, options=options, log=log)
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


@pytest.mark.slow
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


@alike
@pytest.mark.parametrize(
    ("seconds", "tokens", "ending"), [(20, 100, "[DONE]"), (0.3, 10**9, "server_shutting_down")]
)
def test_a_stopping_server_lets_streams_end_or_sends_an_error(
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


@pytest.mark.slow
def test_a_server_that_drains_answers_new_connections_with_503(process: Any) -> None:
    child, url = process(20)
    long = {"prompt": "x", "stream": True, "max_tokens": 10**9}
    with httpx.stream("POST", url + "/v1/completions", json=long, timeout=20) as running:
        lines = running.iter_lines()
        next(lines)
        child.send_signal(signal.SIGTERM)
        while httpx.get(url + "/health").status_code == 200:
            pass
        refused = httpx.post(url + "/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503 and refused.headers["Retry-After"]
        assert refused.json()["error"]["code"] == "server_shutting_down"
        assert refused.headers["Connection"] == "close"
    # the client of the last stream has left: there is nothing to wait for
    assert child.wait(20) == -signal.SIGTERM
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/health")


def test_a_unix_socket_is_for_its_user_and_is_removed(process: Any, tmp_path: Path) -> None:
    path = tmp_path / "inferno.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    child, url = process(5, uds=str(path))
    assert url == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        body = {"prompt": "x", "max_tokens": 5}
        assert client.post("http://localhost/v1/completions", json=body).status_code == 200
    shown = CliRunner().invoke(cli, ["ps", "--url", url])
    assert shown.exit_code == 0 and "fake" in shown.output, shown.output
    nowhere = CliRunner().invoke(cli, ["ps", "--url", f"unix:{path}x"])
    assert nowhere.exit_code == 1 and f"answers at unix:{path}x" in nowhere.output
    model = RemoteModel(url)
    assert model.name == "fake"
    model.close()
    with pytest.raises(AddressError, match="another server"):
        run_server(FakeLLM(), uds=path)  # type: ignore[arg-type]
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == -signal.SIGTERM
    assert not path.exists()


def test_a_file_is_not_replaced_by_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(AddressError, match="is a file"):
        run_server(FakeLLM(), uds=path)  # type: ignore[arg-type]
    assert path.read_text() == "mine"


def test_tls(process: Any, tmp_path: Path) -> None:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl makes the certificate")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [openssl, *make.split(), *names, "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    _, url = process(5, ssl_certfile=cert, ssl_keyfile=key)
    assert url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=cert)
    assert httpx.get(url + "/health", verify=trusted).json() == {"status": "ok"}
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(url.replace("https", "http") + "/health")
    for command in (["ps", "--url", url], ["chat", "--url", url]):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 1 and "SSL_CERT_FILE" in result.stderr.splitlines()[1]


@pytest.mark.parametrize(
    "files",
    [
        {"ssl_certfile": "/no/such/file.pem"},
        {"ssl_certfile": __file__, "ssl_keyfile": __file__},
        {"ssl_keyfile": __file__},
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused_before_loading(files: Any) -> None:
    with pytest.raises(OptionError) as caught:
        run_server("no such model", port=0, **files)
    assert "certificate" in caught.value.cause or "certfile" in caught.value.cause


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


@pytest.mark.slow
def test_a_stopping_server_says_what_it_waits_for(process: Any) -> None:
    child, url = process(0.3, log=True)
    body = {"prompt": "x", "stream": True, "max_tokens": 10**9}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        child.send_signal(signal.SIGTERM)
        list(lines)
    assert child.wait(20) == -signal.SIGTERM
    output = child.stdout.read()
    assert "shutting down: 1 running requests may take up to 0.3 s" in output
    assert "1 requests were ended before their answers were complete" in output


@pytest.mark.slow
def test_a_server_without_requests_says_that_it_stops(process: Any) -> None:
    child, url = process(5, log=True)
    assert httpx.get(url + "/health").status_code == 200
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == -signal.SIGTERM
    assert "all requests have ended" in child.stdout.read()
