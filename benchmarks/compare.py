"""Compare two environments that both have inferno, such as a change and the commit before it.

    python benchmarks/compare.py OTHER/bin/python MODEL [--starts 4] [--rounds 3] [--isq q8_0]

Each environment runs in one process that loads the model once; they take turns in every cell, the
other one first in each second round. Both are started several times: where memory happens to lie
makes processes of the same code differ by some percent. Prints medians in tokens/s and the median
of the paired ratios (this environment / the other), which noise of the machine affects least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict

WORKER = """
import json, random, sys, time
from inferno import LLM, SamplingParams

model, options = sys.argv[1], json.loads(sys.argv[2])
llm = LLM(model, max_model_len=1024, max_num_seqs=16, cache_policy="none", device="cpu", **options)
draw = random.Random(1)

def timed(sequences, length, tokens):
    prompts = [[draw.randrange(100, 1000) for _ in range(length)] for _ in range(sequences)]
    start = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
    return time.perf_counter() - start

timed(1, 32, 2)
print("ready", flush=True)
for cell in map(str.strip, sys.stdin):
    if cell == "prefill":
        speed = 512 / timed(1, 512, 1)
    else:
        sequences, tokens = {"decode": (1, 128), "batch-16": (16, 128)}[cell]
        speed = sequences * tokens / (timed(sequences, 32, tokens + 1) - timed(sequences, 32, 1))
    print(speed, flush=True)
"""
CELLS = ("decode", "prefill", "batch-16")


class Engine:
    """One environment's process."""

    def __init__(self, python: str, model: str, options: dict[str, str]) -> None:
        command = [python, "-c", WORKER, model, json.dumps(options)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def measure(self, cell: str) -> float:
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(f"{cell}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None, "it is a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("an engine ended; its message is above")
        return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("other", help="Python of the other environment")
    parser.add_argument("model", help="a model directory, the same for both")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="of each start")
    parser.add_argument("--isq", help="quantize while loading, in both")
    given = parser.parse_args()
    options = {"isq": given.isq} if given.isq else {}
    pythons = {"other": given.other, "this": sys.executable}
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    for start in range(given.starts):
        engines = {name: Engine(python, given.model, options) for name, python in pythons.items()}
        for number in range(start, start + given.rounds):
            for cell in CELLS:
                for name in ("other", "this") if number % 2 else ("this", "other"):
                    figures[cell, name].append(engines[name].measure(cell))
        for engine in engines.values():
            engine.close()
    print("| cell | other | this | this / other |\n|---|---|---|---|")
    for cell in CELLS:
        other, this = figures[cell, "other"], figures[cell, "this"]
        ratio = statistics.median(b / a for a, b in zip(other, this, strict=True))
        medians = f"{statistics.median(other):.1f} | {statistics.median(this):.1f}"
        print(f"| {cell} | {medians} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
