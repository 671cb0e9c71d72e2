"""What structured output costs: decode steps of a batch with a grammar in every request, beside the
same batch without.

    python benchmarks/constrained.py MODEL [--streams 16] [--tokens 96] [--rounds 5]
    python benchmarks/constrained.py MODEL --temperature 0.8 --top-k 40 --top-p 0.95 --min-p 0.05

The ways take turns. Each time is that of a long answer less that of a short one, so that prompts
and the compilation of grammars do not count. `letters` draws from a set of letters, so that every
mask is different from all ones and nothing is forced; `json` is a schema, whose forced text is
verified as drafts. Beside the time is that of the processor, all threads together, for a machine
that has other work (with `--threads 1`).
"""

from __future__ import annotations

import argparse
from time import perf_counter, process_time
from typing import Any

import numpy as np

from inferno import LLM, SamplingParams

SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["name", "count"],
        "additionalProperties": False,
    },
}
SHORT = 8
"""Tokens of a short answer."""
WAYS: dict[str, dict[str, Any] | None] = {
    "free": None,
    "letters": {"regex": "[a-z ]{100000}"},
    "json": {"json": SCHEMA},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--min-p", type=float, default=0.0)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    llm = LLM(args.model, max_num_seqs=args.streams, max_model_len=1024, threads=args.threads)
    prompts = [[7 + i, 11, 13, 17] for i in range(args.streams)]

    def seconds_of(outputs: dict[str, Any] | None, tokens: int, seed: int) -> tuple[Any, int]:
        """Return the seconds that went by and those of the processor, and the number of tokens."""
        params = SamplingParams(
            max_tokens=tokens,
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            min_p=args.min_p,
            seed=seed,
            ignore_eos=True,
            structured_outputs=outputs,
        )
        start = np.array([perf_counter(), process_time()])
        done = llm.generate(prompts, params)
        took = np.array([perf_counter(), process_time()]) - start
        return took, sum(len(each.outputs[0].token_ids) for each in done)

    seconds: dict[str, list[Any]] = {name: [] for name in WAYS}
    for turn in range(args.rounds + 1):
        for name, outputs in WAYS.items():
            before, few = seconds_of(outputs, SHORT, turn)
            took, many = seconds_of(outputs, SHORT + args.tokens, turn)
            if turn:  # the first round warms up
                seconds[name].append((took - before) / (many - few) * args.streams)
    plain = np.median(seconds["free"], axis=0)
    for name, values in seconds.items():
        wall, cpu = np.median(values, axis=0) * 1000
        of_wall, of_cpu = np.median(values, axis=0) / plain
        print(f"{name:8} {wall:7.2f} ms for a token of each stream  {of_wall:.3f} x", end="   ")
        print(f"processor {cpu:7.2f} ms  {of_cpu:.3f} x")


if __name__ == "__main__":
    main()
