"""What structured output costs: decode steps of a batch with a grammar in every request, beside the
same batch without.

    python benchmarks/constrained.py MODEL [--streams 16] [--tokens 96] [--rounds 5]

The ways take turns. Each time is that of a long answer less that of a short one, so that prompts
and the compilation of grammars do not count. `letters` draws from a set of letters, so that every
mask is different from all ones and nothing is forced; `json` is a schema, whose forced text is
verified as drafts.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter
from typing import Any

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
    args = parser.parse_args()
    llm = LLM(args.model, max_num_seqs=args.streams, max_model_len=1024)
    prompts = [[7 + i, 11, 13, 17] for i in range(args.streams)]

    def seconds_of(outputs: dict[str, Any] | None, tokens: int, seed: int) -> tuple[float, int]:
        params = SamplingParams(
            max_tokens=tokens,
            temperature=1.0,
            seed=seed,
            ignore_eos=True,
            structured_outputs=outputs,
        )
        start = perf_counter()
        done = llm.generate(prompts, params)
        took = perf_counter() - start
        return took, sum(len(each.outputs[0].token_ids) for each in done)

    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(args.rounds + 1):
        for name, outputs in WAYS.items():
            before, few = seconds_of(outputs, SHORT, turn)
            took, many = seconds_of(outputs, SHORT + args.tokens, turn)
            if turn:  # the first round warms up
                seconds[name].append((took - before) / (many - few) * args.streams)
    plain = statistics.median(seconds["free"])
    for name, values in seconds.items():
        middle = statistics.median(values)
        print(
            f"{name:8} {middle * 1000:7.2f} ms for a token of each stream  {middle / plain:.3f} x"
        )


if __name__ == "__main__":
    main()
