"""The probes of `deploy/kubernetes.yaml` heal a server: a kubelet's loop, with time shrunk, around
real processes that hang or do not start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from attrs import define, field

pytest.importorskip("inferno_demo")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes.yaml"
SHRUNK = 20
"""How many times faster than the manifest says the probes come."""
NO_START = """
import os, sys
if "inferno.process" in sys.orig_argv and os.path.exists(os.environ["BROKEN"]):
    raise SystemExit("the test lets no engine start")
"""
"""Runs in every process, before its main module."""


def probes() -> dict[str, Any]:
    manifests = yaml.safe_load_all(MANIFEST.read_text())
    [deployment] = [each for each in manifests if each["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {name: probe for name, probe in container.items() if name.endswith("Probe")}


@define(eq=False)
class Kubelet:
    """Starts a container's process, and anew when it ends or its probes say so, as Kubernetes does:
    the others count once the startup probe has succeeded, `failureThreshold` times in a row is a
    failure, and a failed startup or liveness probe ends the process."""

    command: list[str]
    env: Mapping[str, str]
    url: str
    ready: bool = False
    starts: int = 0
    killed: list[str] = field(factory=list)
    """The probes for which the process was ended."""
    process: subprocess.Popen[bytes] | None = None

    def step(self, probe: str) -> bool:
        """Ask once. Returns whether the answer is a success."""
        given = probes()[probe]
        try:
            answer = httpx.get(
                self.url + given["httpGet"]["path"], timeout=given["timeoutSeconds"] / 2
            )
        except httpx.HTTPError:
            return False
        return 200 <= answer.status_code < 400

    async def run(self) -> None:
        while True:
            self.process = subprocess.Popen(self.command, env=dict(self.env))
            self.starts += 1
            try:
                await self._watch(self.process)
            finally:
                self.ready = False
                self.process.send_signal(signal.SIGCONT)
                self.process.kill()
                self.process.wait()

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Return when the process is to be started anew."""
        failures = {"startupProbe": 0, "livenessProbe": 0}
        names = {"startupProbe"}
        due = dict.fromkeys(probes(), 0.0)
        while process.poll() is None:
            await asyncio.sleep(0.02)
            for name in sorted(names):
                if time.monotonic() < due[name]:
                    continue
                given = probes()[name]
                due[name] = time.monotonic() + given["periodSeconds"] / SHRUNK
                succeeded = await asyncio.to_thread(self.step, name)
                if name == "readinessProbe":
                    self.ready = succeeded
                    continue
                failures[name] = 0 if succeeded else failures[name] + 1
                if name == "startupProbe" and succeeded:
                    names = {"livenessProbe", "readinessProbe"}
                if failures[name] >= given.get("failureThreshold", 3):
                    self.killed.append(name)
                    return


@contextmanager
def broken(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A file that lets no engine start while it exists, and the environment in which it does."""
    (tmp_path / "sitecustomize.py").write_text(NO_START)
    flag = tmp_path / "broken"
    yield flag, {**os.environ, "PYTHONPATH": str(tmp_path), "BROKEN": str(flag)}


def kubelet(env: Mapping[str, str], *options: str) -> Kubelet:
    port = free_port()
    command = [sys.executable, "-m", "inferno", "serve", "demo", "--port", str(port)]
    return Kubelet([*command, "--device", "cpu", *options], env, f"http://127.0.0.1:{port}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not heal"
        await asyncio.sleep(0.05)


def engine_of(server: int) -> int | None:
    """The engine process of a server."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path("/proc", pid, "cmdline").read_bytes()
            parent = int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == server and b"inferno.process\0" in command + b"\0":
            return int(pid)
    return None


def ask(url: str, tokens: int = 4) -> httpx.Response:
    body = {"model": "demo", "prompt": "What does math.gcd do?", "max_tokens": tokens}
    return httpx.post(f"{url}/v1/completions", json={**body, "temperature": 0}, timeout=60)


def healed(scenario: Callable[[Kubelet], Any], watched: Kubelet) -> None:
    async def run() -> None:
        loop = asyncio.create_task(watched.run())
        try:
            await until(lambda: watched.ready)
            await scenario(watched)
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)

    asyncio.run(run())


def test_an_engine_that_is_stopped_is_not_ready_its_requests_end_and_the_next_is_right(
    tmp_path: Path,
) -> None:
    """With the limits of a second that stand for 45: the server heals itself, and the probes only
    keep requests away meanwhile."""

    async def scenario(it: Kubelet) -> None:
        assert it.process is not None
        before = await asyncio.to_thread(ask, it.url)
        stopped = engine_of(it.process.pid)
        assert before.status_code == 200 and stopped is not None
        long = asyncio.create_task(asyncio.to_thread(ask, it.url, 500))
        await asyncio.sleep(0.1)
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: not it.ready, 10)
        refused = await asyncio.to_thread(ask, it.url)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_restarting"
        ended = await asyncio.wait_for(long, 15)
        assert ended.status_code == 503, ended.text
        assert ended.json()["error"]["code"] == "engine_restarting"
        await until(lambda: it.ready)
        assert engine_of(it.process.pid) not in (None, stopped)
        after = await asyncio.to_thread(ask, it.url)
        assert after.json()["choices"] == before.json()["choices"]
        assert (it.starts, it.killed) == (1, [])

    healed(scenario, kubelet(os.environ, "--engine-timeout", "3"))


def test_an_engine_that_does_not_start_ends_the_server_which_is_started_anew(
    tmp_path: Path,
) -> None:
    with broken(tmp_path) as (flag, env):

        async def scenario(it: Kubelet) -> None:
            assert it.process is not None
            engine = engine_of(it.process.pid)
            assert engine is not None
            flag.touch()
            os.kill(engine, signal.SIGKILL)
            await until(lambda: not it.ready, 10)
            await until(lambda: it.starts > 1)
            flag.unlink()
            await until(lambda: it.ready)
            assert (await asyncio.to_thread(ask, it.url)).status_code == 200
            assert it.killed == [], "it ended by itself"

        healed(scenario, kubelet(env, "--max-failed-starts", "2"))


def test_without_that_option_the_server_goes_on_and_heals_when_it_can(tmp_path: Path) -> None:
    with broken(tmp_path) as (flag, env):

        async def scenario(it: Kubelet) -> None:
            assert it.process is not None
            engine = engine_of(it.process.pid)
            assert engine is not None
            flag.touch()
            os.kill(engine, signal.SIGKILL)
            await until(lambda: not it.ready, 10)
            await asyncio.sleep(3)
            flag.unlink()
            await until(lambda: it.ready)
            assert (await asyncio.to_thread(ask, it.url)).status_code == 200
            assert (it.starts, it.killed) == (1, [])

        healed(scenario, kubelet(env))


def test_a_server_that_does_not_answer_is_ended_and_started_anew(tmp_path: Path) -> None:
    async def scenario(it: Kubelet) -> None:
        assert it.process is not None
        stop = partial(it.process.send_signal, signal.SIGSTOP)  # what runs the test may continue it
        await until(lambda: (stop(), it.killed)[1], 90)
        await until(lambda: it.ready)
        assert it.killed == ["livenessProbe"] and it.starts == 2
        assert (await asyncio.to_thread(ask, it.url)).status_code == 200

    healed(scenario, kubelet(os.environ))
