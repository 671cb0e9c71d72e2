"""What every engine's worker does: announce itself, then answer questions on stdin, one JSON
document per line.

A worker defines `generate(prompts, new_tokens) -> (seconds to the first token, seconds in all)`,
greedy and never stopping early, and calls `serve(generate)`. It runs under its engine's own Python:
standard library only. Between questions it waits on stdin, so that it does not disturb the engine
being measured. It leads a process group, which ends with stdin.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from types import TracebackType
from typing import Any

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
MAX_MODEL_LEN = int(os.environ.get("BENCH_MAX_MODEL_LEN", "2304"))
MAX_NUM_SEQS = 64
KEEPS = os.environ.get("BENCH_KEEPS") == "1"
"""Whether the cache keeps prompts for later ones that begin alike. Then they come one by one."""
CACHE_GIGABYTES = int(os.environ.get("BENCH_CACHE_GIGABYTES", "2"))

Generate = Callable[[Sequence[list[int]], int], tuple[float, float]]

_answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever the engine prints is a log


def _fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    _answer({"error": _words(error)})


sys.excepthook = _fail  # the parent is told why there is no first token


def serve(package: str, generate: Generate, level: Callable[[], str] = str) -> None:
    """Produce one token, say so, and answer until told to stop. `level` names the instructions that
    the engine chose."""
    generate([list(range(300, 332))], 1)
    _answer({"engine": package, "version": version(package), "level": level()})
    for line in sys.stdin:
        question = json.loads(line)
        try:
            first, total = generate(question["prompts"], question["new_tokens"])
            _answer({"first": first, "total": total})
        except Exception as error:
            traceback.print_exc()
            _answer({"error": _words(error)})
    os.killpg(
        os.getpid(), signal.SIGKILL
    )  # some engines' threads, or processes they started, would stay


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _answer(document: dict[str, Any]) -> None:
    _answers.write(json.dumps(document) + "\n")
