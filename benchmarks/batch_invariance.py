"""What `--batch-invariant` costs: processor time of the same requests with and without it.

    python benchmarks/batch_invariance.py [REF] [--prompt 256] [--tokens 32] [--requests 8]
        [--rounds 5] [--attention-backend NAME]

Both engines are loaded in this process and take turns. Prompts are random tokens, so that none is
found in the cache.
"""

from __future__ import annotations

import argparse
import random
import statistics
from time import process_time

from inferno import LLM, SamplingParams
from inferno.host import sleep_at_barriers


def main() -> None:
    sleep_at_barriers()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ref", nargs="?", default="demo")
    parser.add_argument("--attention-backend", default="auto")
    for name, default in (("prompt", 256), ("tokens", 32), ("requests", 8), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    engines = [
        LLM(
            given.ref,
            batch_invariant=each,
            attention_backend=given.attention_backend,
            max_model_len=given.prompt + given.tokens,
            threads=1,
        )
        for each in (False, True)
    ]
    params = SamplingParams(temperature=0, max_tokens=given.tokens, ignore_eos=True)
    draw = random.Random(0)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(given.rounds + 1):  # the first one is not counted
        prompts = [
            {"prompt_token_ids": [draw.randrange(5, 1000) for _ in range(given.prompt)]}
            for _ in range(given.requests)
        ]
        for llm, seconds in zip(engines, taken, strict=True):
            before = process_time()
            llm.generate(prompts, params)
            seconds.append(process_time() - before)
    plain, invariant = (statistics.median(seconds[1:]) for seconds in taken)
    print(f"{given.ref}: {plain:.3f} s without, {invariant:.3f} s with: {invariant / plain:.3f} x")
    for llm in engines:
        llm.close()


if __name__ == "__main__":
    main()
