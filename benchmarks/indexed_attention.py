"""Measure attention over the positions that an index finds beside attention over all, in turns.

    python benchmarks/indexed_attention.py [--heads 32] [--contexts 1024 2048 ...] [--rounds 5]

One layer of DeepSeek-V3.2's attention (latents of 512 and 64, an index of 64 heads of 128, 2 048
positions), in bfloat16, without its projections: a step of one token, and one of a part of a
prompt. Times are processor time, the least of the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time
from typing import Any

import attrs
import torch

from inferno.catalog import load_catalog
from inferno.contracts import AttentionBackend, AttentionNeed, Device, Indexed, IndexSpec
from inferno.core.kvcache import KVCache
from inferno.testing.paged_steps import batch_of

BLOCK = 16
PROMPT = 64
"""Tokens of the part of a prompt."""


def steps(need: AttentionNeed, context: int, tokens: int) -> Callable[[], object]:
    """Return what runs a step of the last `tokens` of a context."""
    item = load_catalog().named(AttentionBackend, "torch").item
    attend, blocks = item.build(need), -(-context // BLOCK)
    cache = KVCache.allocate([item.cache(need, BLOCK)], blocks, "cpu").layers[0]
    for tensor in cache.values():
        tensor.normal_()
    span, table = (context - tokens, context), list(range(blocks))
    q_THC = torch.randn(tokens, need.num_heads, need.head_dim, dtype=torch.bfloat16)
    k_TKC = torch.randn(tokens, 1, need.head_dim, dtype=torch.bfloat16)
    more: dict[str, Any] = {}
    if (index := need.index) is not None:
        k_TC = torch.randn(tokens, index.head_dim, dtype=torch.bfloat16)
        q_TJC = torch.randn(tokens, index.num_heads, index.head_dim, dtype=torch.bfloat16)
        weights_TJ = torch.randn(tokens, index.num_heads)
        queries = (q_TJC, weights_TJ) if context > index.top_k else ()
        more = {"indexed": Indexed(k_TC, *queries)}

    @torch.inference_mode()
    def run() -> object:
        batch = batch_of([0], [0], [span], [table], BLOCK, "cpu")
        return attend(q_THC, k_TKC, k_TKC, cache, batch, **more)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 32768])
    given = parser.parse_args()
    dense = AttentionNeed(
        num_heads=given.heads,
        num_kv_heads=1,
        head_dim=576,
        latent_dim=512,
        scale=576**-0.5,
        dtype="bfloat16",
        device=Device("cpu"),
    )
    index = IndexSpec(num_heads=64, head_dim=128, top_k=2048)
    print("| context | tokens | all, ms | found, ms |\n| ---: | ---: | ---: | ---: |")
    for context in given.contexts:
        for tokens in (1, PROMPT):
            runs = [steps(n, context, tokens) for n in (dense, attrs.evolve(dense, index=index))]
            times: list[list[float]] = [[], []]
            for _ in range(given.rounds):
                for run, seconds in zip(runs, times, strict=True):
                    begun = process_time()
                    run()
                    seconds.append(process_time() - begun)
            all_ms, found_ms = (1e3 * min(seconds) for seconds in times)
            print(f"| {context} | {tokens} | {all_ms:.1f} | {found_ms:.1f} |", flush=True)


if __name__ == "__main__":
    main()
