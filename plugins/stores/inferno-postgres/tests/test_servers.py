"""Two servers with one PostgreSQL behind the nginx file of `deploy/`: what is stored is shared, a
rolling restart is noticed by nobody, and a killed server's work ends once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from attrs import define, field

if TYPE_CHECKING:
    from started_postgres import Postgres

pytest_plugins = ["started_postgres"]
pytestmark = pytest.mark.slow

NGINX = Path(__file__).parents[4] / "deploy" / "nginx.conf"
ENDED = {"completed", "failed", "cancelled", "incomplete", "expired"}
STREAMS = 200


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def program(name: str) -> str:
    binary = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if binary is None:
        pytest.skip(f"{name} is not installed")
    return binary


@define(eq=False)
class Server:
    """A server in a session of its own, so that all its processes can be killed."""

    store: str
    log: Path
    port: int = field(factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "inferno", "serve", "demo", "--device", "cpu", "--no-page"]
        options = ("--port", str(self.port), "--shutdown-timeout", "60", "--store-size", "64")
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, *options],
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "INFERNO_STORE": self.store},
            )

    def wait(self) -> None:
        end = time.monotonic() + 180
        while not self.is_ready():
            assert self.process is not None and self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)

    def is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        return False

    def running(self) -> int:
        """How many requests it generates for."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        match = re.search(r"^inferno_num_requests_running\S* (\d+)", text, re.MULTILINE)
        assert match, text
        return int(match[1])

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def kill(self) -> None:
        """Kill it, its engine and whatever else it has started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def servers(address: str, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    pytest.importorskip("inferno_demo", reason="inferno-demo is not installed")
    pair = Server(address, tmp_path / "a.log"), Server(address, tmp_path / "b.log")
    try:
        for each in pair:
            each.start()
        for each in pair:
            each.wait()
        yield pair
    finally:
        for each in pair:
            each.kill()


@pytest.fixture
def proxy(servers: tuple[Server, Server], tmp_path: Path) -> Iterator[str]:
    """The URL of an nginx with the shipped site, of which only ports and paths are others."""
    nginx, openssl = program("nginx"), program("openssl")
    version = subprocess.run([nginx, "-v"], capture_output=True, text=True).stderr
    folder, port = tmp_path / "nginx", free_port()
    folder.mkdir()
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    site = NGINX.read_text()
    changes = {
        "server 127.0.0.1:8000": f"server 127.0.0.1:{servers[0].port}",
        "# server 127.0.0.1:8001": f"server 127.0.0.1:{servers[1].port}",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/llm.example.com.pem": str(certificate),
        "/etc/ssl/llm.example.com.key": str(key),
    }
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", version)
    if match and tuple(map(int, match.groups())) < (1, 25, 1):
        changes["http2 on;"] = ""
    for old, new in changes.items():
        assert site.count(old) == 1, old
        site = site.replace(old, new)
    (folder / "site.conf").write_text(site)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = "" if os.geteuid() else "user root;\n"
    main += f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
    main += "events { worker_connections 4096; }\n"
    main += f"http {{ access_log off;\n{temporary}include {folder}/site.conf;\n}}\n"
    (folder / "nginx.conf").write_text(main)
    process = subprocess.Popen([nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        url = f"https://localhost:{port}"
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/readyz", verify=False).status_code == 200:
                    break
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def lines(count: int, tokens: int) -> bytes:
    body = {"prompt": "hi", "max_tokens": tokens, "ignore_eos": True}
    requests = (
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}
        for i in range(count)
    )
    return b"".join(json.dumps(each).encode() + b"\n" for each in requests)


def start_batch(http: httpx.Client, count: int, tokens: int) -> dict[str, Any]:
    content = lines(count, tokens)
    file = http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    assert file.status_code == 200, file.text
    wanted = {"endpoint": "/v1/completions", "completion_window": "24h"}
    made = http.post("/v1/batches", json={"input_file_id": file.json()["id"], **wanted})
    assert made.status_code == 200, made.text
    return dict(made.json())


def ended(http: httpx.Client, path: str, seconds: float = 120) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while True:
        answer = http.get(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        if answer.json()["status"] in ENDED:
            return dict(answer.json())
        assert time.monotonic() < end, answer.text
        time.sleep(0.1)


def answered(http: httpx.Client, batch: dict[str, Any]) -> list[str]:
    """The lines that a batch's output has, in their order."""
    content = http.get(f"/v1/files/{batch['output_file_id']}/content").text
    return sorted((json.loads(each)["custom_id"] for each in content.splitlines()), key=int)


def test_what_is_stored_at_one_server_is_there_at_the_other(
    servers: tuple[Server, Server], proxy: str
) -> None:
    a, b = (httpx.Client(base_url=each.url, timeout=60) for each in servers)
    behind = httpx.Client(base_url=proxy, timeout=60, verify=False)
    previous = None
    for i in range(12):
        body = {"input": f"number {i}", "max_output_tokens": 4, "previous_response_id": previous}
        made = (a, b, behind)[i % 3].post("/v1/responses", json=body)
        assert made.status_code == 200, made.text
        previous = made.json()["id"]
    for http in (a, b, behind):
        assert http.get(f"/v1/responses/{previous}").json()["status"] in ENDED
        shown = http.get(f"/v1/responses/{previous}/input_items").json()
        assert shown["data"][0]["content"][0]["text"] == "number 11"
    conversation = a.post("/v1/conversations", json={}).json()["id"]
    for i in range(6):
        body = {"input": f"turn {i}", "conversation": conversation, "max_output_tokens": 4}
        assert (a, b)[i % 2].post("/v1/responses", json=body).status_code == 200
    items = b.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"}).json()
    turns = [each["content"][0]["text"] for each in items["data"] if each.get("role") == "user"]
    assert turns == [f"turn {i}" for i in range(6)]
    text = {"type": "message", "role": "user", "content": "a\x00b\x01c"}
    assert b.post(f"/v1/conversations/{conversation}/items", json={"items": [text]}).is_success
    item = a.get(f"/v1/conversations/{conversation}/items").json()["data"][0]
    assert item["content"][0]["text"] == "a\x00b\x01c"
    for id in ("x%00y", "x%01y"):
        for path in (f"/v1/conversations/{conversation}/items/{id}", f"/v1/responses/{id}"):
            assert a.get(path).status_code == 404
    content = lines(2000, 2) * 10
    files = {"file": ("large.jsonl", content)}
    file = a.post("/v1/files", files=files, data={"purpose": "batch"}).json()
    assert b.get(f"/v1/files/{file['id']}/content").content == content
    assert b.delete(f"/v1/files/{file['id']}").status_code == 200
    assert a.get(f"/v1/files/{file['id']}").status_code == 404
    batch = ended(b, f"/v1/batches/{start_batch(a, 20, 4)['id']}")
    assert batch["status"] == "completed" and answered(b, batch) == list(map(str, range(20)))
    made = a.post(
        "/v1/responses", json={"input": "hi", "background": True, "max_output_tokens": 1500}
    ).json()
    assert b.get(f"/v1/responses/{made['id']}").status_code == 200
    assert b.post(f"/v1/responses/{made['id']}/cancel").status_code in (200, 400)
    assert ended(a, f"/v1/responses/{made['id']}")["status"] in ENDED


@define(eq=False)
class Crowd:
    """Clients that stream one answer after another."""

    url: str
    whole: int = 0
    errors: list[str] = field(factory=list)
    stop: bool = False

    async def go_on(self, http: httpx.AsyncClient, number: int) -> None:
        body = {
            "messages": [{"role": "user", "content": f"client {number}"}],
            "stream": True,
            "max_tokens": 500,
            "ignore_eos": True,
        }
        while not self.stop:
            last = ""
            try:
                async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                    if answer.status_code != 200:
                        self.errors.append(f"{answer.status_code} {await answer.aread()!r}")
                        continue
                    async for line in answer.aiter_lines():
                        last = line or last
                        if line.startswith("data: {") and '"error"' in line:
                            self.errors.append(line)
            except httpx.HTTPError as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                continue
            if last == "data: [DONE]":
                self.whole += 1
            else:
                self.errors.append(f"it ended in {last!r}")

    async def run(self, seconds_after: Any) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(
            base_url=self.url, timeout=300, verify=context, limits=limits
        ) as http:
            tasks = [asyncio.create_task(self.go_on(http, i)) for i in range(STREAMS)]
            try:
                await asyncio.to_thread(seconds_after)
            finally:
                self.stop = True
                await asyncio.gather(*tasks)


def test_a_rolling_restart_is_noticed_by_none_of_200_streams(
    servers: tuple[Server, Server], proxy: str
) -> None:
    crowd = Crowd(proxy)
    counts: list[int] = []

    def restart() -> None:
        end = time.monotonic() + 120
        while crowd.whole < STREAMS and time.monotonic() < end:
            time.sleep(0.1)
        for each in servers:
            counts.append(crowd.whole)
            while each.running() < STREAMS // 4 and time.monotonic() < end + 120:
                time.sleep(0.02)
            each.stop()
            each.start()
            each.wait()
        counts.append(crowd.whole)

    asyncio.run(crowd.run(restart))
    assert not crowd.errors, (len(crowd.errors), crowd.errors[:3])
    for each in servers:
        [running] = re.findall(r"shutting down: (\d+) running", each.log.read_text())
        assert int(running) > STREAMS // 10, "it had streams when it was told to stop"
    assert crowd.whole > STREAMS and counts[0] < counts[1] < counts[2], counts


def test_a_killed_servers_work_ends_once(
    servers: tuple[Server, Server], postgres: Postgres, database: str
) -> None:
    a, b = servers
    with httpx.Client(base_url=a.url, timeout=60) as http:
        batch = start_batch(http, 300, 200)

        def count() -> int:
            status = http.get(f"/v1/batches/{batch['id']}").json()
            return int(status["request_counts"]["completed"])

        end = time.monotonic() + 60
        while not count() and time.monotonic() < end:
            time.sleep(0.05)
        body = {"input": "hi", "background": True, "max_output_tokens": 1500, "ignore_eos": True}
        answers = [http.post("/v1/responses", json=body) for _ in range(40)]
        assert {each.status_code for each in answers} == {200}
        ids = [each.json()["id"] for each in answers]
    leased = postgres.execute("SELECT server, COUNT(*) FROM inferno.leases GROUP BY 1", database)
    a.kill()
    with httpx.Client(base_url=b.url, timeout=60) as http:
        statuses = [ended(http, f"/v1/responses/{id}")["status"] for id in ids]
        assert len(leased) == 1 and "failed" in statuses, (leased, statuses)
        failed = http.get(f"/v1/responses/{ids[statuses.index('failed')]}").json()
        assert "stopped" in failed["error"]["message"]
        batch = ended(http, f"/v1/batches/{batch['id']}")
        assert batch["status"] == "completed"
        assert answered(http, batch) == list(map(str, range(300))), "each once"
    assert postgres.execute("SELECT COUNT(*) FROM inferno.leases", database) == [(0,)]
