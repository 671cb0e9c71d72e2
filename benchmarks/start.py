"""What a start costs: seconds to the first token, processor time and memory by process.

    python benchmarks/start.py MODEL [--rounds 5] [--python BEFORE --python AFTER]

Each round runs, in turns and for each Python: `inferno generate MODEL` until its first byte,
`import torch` alone, `inferno --help`, and the import of the libraries that it uses. At the first
byte the processes are read in /proc (Linux): the highest resident size, and of what is resident
then, anonymous pages and pages of files. Medians are printed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

_TICK = os.sysconf("SC_CLK_TCK")
_GENERATE = "-m", "inferno", "generate"
_PROMPT = "--prompt", "Why is the sky blue?", "--max-tokens", "32", "--temperature", "0"
_ENGINE = "inferno.process"
"""Module of the engine process, in its command line."""
_HELP = "-m", "inferno", "--help"
_LISTED = """
import runpy, sys
sys.argv[1:] = ["--help"]
try:
    runpy.run_module("inferno", run_name="__main__")
finally:
    names = (name for name in sys.modules if not name.startswith(("inferno", "__")))
    print(*names, file=sys.stderr)
"""
"""Prints the modules that the help imports and that are not inferno's."""
_IMPORTED = """
import sys
from contextlib import suppress
for name in sys.argv[1:]:
    with suppress(ImportError):
        __import__(name)
"""
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

Figures = Mapping[str, float]


def start(python: str, model: str, options: Sequence[str]) -> Figures:
    """Start a model until the first byte of its answer. Seconds and megabytes by name."""
    begun = time.perf_counter()
    command = [python, *_GENERATE, model, *_PROMPT, *options]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_ENVIRONMENT
    )
    assert child.stdout is not None, "it is a pipe"
    first = child.stdout.read(1)
    figures = {"first token, s": time.perf_counter() - begun}
    if first:
        for pid in _tree(child.pid):
            name = "engine" if _ENGINE in _read(pid, "cmdline") else "command"
            for key, value in _process(pid).items():
                for label in (f"{name}: {key}", f"all: {key}"):
                    figures[label] = figures.get(label, 0.0) + value
    child.stdout.read()
    if child.wait() or not first:
        raise SystemExit(f"`{' '.join(command)}` failed: run it to see why.")
    return figures


def _tree(pid: int) -> list[int]:
    """Return a process and those below it."""
    below = _read(pid, f"task/{pid}/children").split()
    return [pid, *(each for child in below for each in _tree(int(child)))]


def _process(pid: int) -> Figures:
    """Return what a process has used."""
    status = dict(re.findall(r"(\w+):\s+(\d+) kB", _read(pid, "status")))
    times = _read(pid, "stat").rpartition(")")[2].split()[11:13]
    kilobytes = {"peak": "VmHWM", "anonymous": "RssAnon", "files": "RssFile"}
    figures = {f"{key}, MB": int(status.get(of, 0)) * 1024 / 1e6 for key, of in kilobytes.items()}
    return figures | {"processor time, s": sum(map(int, times)) / _TICK}


def _read(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except OSError:  # it has ended
        return ""


def libraries(python: str) -> list[str]:
    """Return the modules that `inferno --help` imports and that are not inferno's."""
    command = [python, "-c", _LISTED]
    done = subprocess.run(command, capture_output=True, text=True, env=_ENVIRONMENT, check=True)
    return done.stderr.split()


def alone(command: Sequence[str]) -> tuple[float, float]:
    """Run a command. Returns its seconds of processor time, and its highest resident size in MB."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_ENVIRONMENT)
    _, code, usage = os.wait4(child.pid, 0)
    if code:
        raise SystemExit(f"`{' '.join(command)}` failed: run it to see why.")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--python", action="append", help="of an environment with inferno")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("options", nargs="*", help="of `inferno generate`, after --")
    given = parser.parse_args()
    pythons: list[str] = given.python or [sys.executable]
    rows: dict[str, list[list[float]]] = {}

    def add(column: int, row: str, value: float) -> None:
        rows.setdefault(row, [[] for _ in pythons])[column].append(value)

    for round_ in range(given.rounds + 1):
        for column, python in enumerate(pythons):
            figures = dict(start(python, given.model, given.options))
            alones = {
                "`import torch`": ["-c", "import torch"],
                "`--help`": _HELP,
                "libraries of `--help`": ["-c", _IMPORTED, *libraries(python)],
            }
            for name, arguments in alones.items():
                seconds, peak = alone([python, *arguments])
                figures |= {f"{name}: processor time, s": seconds, f"{name}: peak, MB": peak}
            if round_:  # the first may write bytecode and packed weights
                for row, value in figures.items():
                    add(column, row, value)
    print(f"| median of {given.rounds} | {' | '.join(pythons)} |\n|---|{'---|' * len(pythons)}")
    for row, columns in rows.items():
        digits = 2 if row.endswith(" s") else 0
        print(f"| {row} | {' | '.join(f'{median(column):.{digits}f}' for column in columns)} |")


if __name__ == "__main__":
    main()
