"""Random sequences that are attended to step by step, and naive attention in float64.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, L tokens of a sequence.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from inferno.contracts import AttentionNeed, Device
from inferno.nn.batch import Batch
from inferno.testing import KVCache
from inferno_cpu.attend import NativeAttend
from inferno_cpu.attention import cache

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 2e-3}
MIXED = [(7, 1, 0, 33), (16, 1, 5, 1), (1, 1, 1, 1), (0, 100, 12, 1), (1, 1, 1, 1)]
"""Tokens each sequence computes in each step."""


def need(
    heads: int = 4, kv_heads: int = 2, dim: int = 32, dtype: str = "float32", **more: Any
) -> AttentionNeed:
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim}
    return AttentionNeed(**sizes, scale=dim**-0.5, dtype=dtype, **{"device": Device("cpu"), **more})  # type: ignore[arg-type]


class Sequences:
    """Random tokens of a few sequences, and a cache they are attended to through, step by step."""

    def __init__(
        self, asked: AttentionNeed, lengths: Sequence[int], block_size: int = 16, seed: int = 0
    ) -> None:
        self.need, self.block_size = asked, block_size
        generator = torch.Generator().manual_seed(seed)
        self.dtype = getattr(torch, asked.dtype)
        heads = (asked.num_heads, asked.num_kv_heads, asked.num_kv_heads)
        self.qkv = [
            [torch.randn(n, h, asked.head_dim, generator=generator).to(self.dtype) for h in heads]
            for n in lengths
        ]
        width = -(-max(lengths) // block_size) + 1
        blocks = list(range(len(lengths) * width))
        random.Random(seed).shuffle(blocks)
        self.tables = [blocks[i :: len(lengths)] for i in range(len(lengths))]
        self.cache = KVCache.allocate([cache(asked, block_size)], len(blocks), "cpu").layers[0]
        poison(self.cache)
        self.done = [0] * len(lengths)
        self.attend = NativeAttend(asked)

    def step(self, counts: Sequence[int], last: int = 1 << 30) -> tuple[Tensor, Tensor]:
        """(ours, theirs), the outputs of the step's tokens: of each sequence the `last`."""
        spans = [(i, self.done[i], self.done[i] + n) for i, n in enumerate(counts) if n]
        ours = self.attended(spans)
        for i, _, b in spans:
            self.done[i] = b
        ours = torch.cat([x[-last:] for x in torch.split(ours, [b - a for _, a, b in spans])])
        return ours, torch.cat(
            [naive(self.qkv[i], max(a, b - last), b, self.need) for i, a, b in spans]
        )

    def attended(self, spans: Sequence[tuple[int, int, int]]) -> Tensor:
        """Return our outputs of a step of these (sequence, first token, end)."""
        q, k, v = (torch.cat([self.qkv[i][j][a:b] for i, a, b in spans]) for j in range(3))
        q, k, v = views_of_one(q, k, v)
        return self.attend(q, k, v, self.cache, self.batch(spans))

    def batch(self, spans: Sequence[tuple[int, int, int]]) -> Batch:
        B = self.block_size
        places = [(i, p) for i, a, b in spans for p in range(a, b)]
        widest = max(-(-b // B) for _, _, b in spans)
        return Batch(
            token_ids_T=torch.zeros(len(places), dtype=torch.int64),
            positions_T=torch.tensor([p for _, p in places]),
            slots_T=torch.tensor([self.tables[i][p // B] * B + p % B for i, p in places]),
            query_starts=[0, *itertools.accumulate(b - a for _, a, b in spans)],
            context_lens=[b for _, _, b in spans],
            blocks_SM=torch.tensor([self.tables[i][:widest] for i, _, _ in spans]),
            block_size=B,
            query_starts_S1=torch.tensor(
                [0, *itertools.accumulate(b - a for _, a, b in spans)], dtype=torch.int32
            ),
            context_lens_S=torch.tensor([b for _, _, b in spans], dtype=torch.int32),
        )


def poison(tensors: Mapping[str, Tensor]) -> None:
    """Fill every slot with NaN: reading one that was not stored shows in the output."""
    for tensor in tensors.values():
        tensor.view(torch.uint8).fill_(0xFF)


def views_of_one(q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor) -> list[Tensor]:
    """Return the three as slices of one matrix, as a fused projection does."""
    whole = torch.cat([q_THC.flatten(1), k_TKC.flatten(1), v_TKC.flatten(1)], 1)
    sizes = [x[0].numel() for x in (q_THC, k_TKC, v_TKC)]
    return [x.unflatten(1, (-1, q_THC.shape[-1])) for x in torch.split(whole, sizes, 1)]


def naive(qkv: Sequence[Tensor], first: int, stop: int, asked: AttentionNeed) -> Tensor:
    q_LHC, k_LKC, v_LKC = (x.double() for x in qkv)
    groups = asked.num_heads // asked.num_kv_heads
    k_LHC, v_LHC = (x[:stop].repeat_interleave(groups, dim=1) for x in (k_LKC, v_LKC))
    scores_HQL = torch.einsum("qhc,lhc->hql", q_LHC[first:stop], k_LHC) * asked.scale
    if asked.soft_cap is not None:
        scores_HQL = asked.soft_cap * torch.tanh(scores_HQL / asked.soft_cap)
    back_QL = torch.arange(first, stop)[:, None] - torch.arange(stop)
    hidden_QL = (back_QL < 0) & (not asked.bidirectional)
    if asked.sliding_window is not None:
        hidden_QL |= back_QL.abs() >= asked.sliding_window
    weights_HQL = scores_HQL.masked_fill(hidden_QL, float("-inf")).softmax(-1)
    return torch.einsum("hql,lhc->qhc", weights_HQL, v_LHC)


def check(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    error = (ours.double() - theirs).abs() / (1 + theirs.abs())
    assert error.max() <= tolerance, error.max()
