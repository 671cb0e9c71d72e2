"""What every engine's worker does: announce itself, then answer questions on stdin, one JSON document per line.

A worker defines `generate(prompts, new_tokens) -> (seconds to the first token, seconds in all)`, greedy and never stopping
early, and calls `serve(generate)`. It runs under its engine's own Python: standard library only. Between questions it
waits on stdin, so that it does not disturb the engine being measured.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from time import perf_counter
from typing import Any

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
MAX_MODEL_LEN = 2304
MAX_NUM_SEQS = 64

Generate = Callable[[Sequence[list[int]], int], tuple[float, float]]

_answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever the engine prints is a log


def serve(package: str, generate: Generate) -> None:
    """Produce one token, say so, and answer until told to stop."""
    generate([list(range(300, 332))], 1)
    _answer({"engine": package, "version": version(package)})
    for line in sys.stdin:
        question = json.loads(line)
        try:
            first, total = generate(question["prompts"], question["new_tokens"])
            _answer({"first": first, "total": total})
        except Exception as error:
            traceback.print_exc()
            _answer({"error": f"{type(error).__name__}: {error}"[:300]})
    os._exit(0)  # some engines' threads would keep the process


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = perf_counter()
    result = call()
    return result, perf_counter() - start


def _answer(document: dict[str, Any]) -> None:
    _answers.write(json.dumps(document) + "\n")
