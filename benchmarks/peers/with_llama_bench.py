"""llama.cpp's own `llama-bench`, for the cells that it has: one prompt, or one stream after a
prompt. It loads the model anew each time, which does not count, and draws no tokens: random ones
follow each other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from worker import KEEPS, THREADS, serve

_PROGRAM = Path(sys.prefix) / "llama.cpp" / "bin" / "llama-bench"


def generate(prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
    (prompt,) = prompts
    if new_tokens == 1:
        work = ["-p", str(len(prompt)), "-n", "0"]
    else:
        work = ["-p", "0", "-n", str(new_tokens - 1), "-d", str(len(prompt) + 1)]
    command = [str(_PROGRAM), "-m", sys.argv[1], "-t", str(THREADS), "-ngl", "0", "-o", "json"]
    work += ["-r", "1", "-fa", "off" if KEEPS else "auto"]  # the same as beside it
    done = subprocess.run([*command, *work], stdout=subprocess.PIPE, check=True)
    (record,) = json.loads(done.stdout)
    return 0.0, record["avg_ns"] / 1e9


serve("llama-cpp-python", generate, lambda: "llama-bench")
