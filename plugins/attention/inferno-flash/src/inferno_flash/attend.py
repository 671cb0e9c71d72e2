"""Attention of one layer by an implementation of FlashAttention.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, S sequences, M blocks of
the longest sequence, B blocks of the cache, P tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from attrs import field, frozen
from torch import Tensor

from inferno.attention.stored import Stored
from inferno.contracts import AttentionNeed
from inferno.nn.attention import is_single
from inferno.nn.batch import Batch


@frozen(eq=False)
class Lengths:
    """What the layers of a step share."""

    starts_S1: Tensor
    """First token of each sequence, then T; int32."""
    contexts_S: Tensor
    """Tokens of each sequence, int32; 0 in padding rows."""
    tables_SM: Tensor
    """Block tables, int32."""
    single: bool
    """Whether each sequence has one token."""
    max_queries: int
    max_context: int
    """Upper bounds, on the host."""

    @classmethod
    def of(cls, batch: Batch) -> Lengths:
        starts = batch.query_starts
        queries = [b - a for a, b in zip(starts, starts[1:], strict=False)]
        return cls(
            batch.query_starts_S1,
            batch.context_lens_S,
            batch.blocks_SM.int(),
            single=is_single(batch),
            max_queries=max(queries),
            max_context=max(1, *batch.context_lens),
        )


Run = Callable[[AttentionNeed, Tensor, Tensor, Tensor, Lengths], Tensor]
"""run(need, q_THC, k_BPKC, v_BPKC, lengths) -> (T, H, C)."""


@frozen
class FlashAttend:
    """One layer's attention."""

    need: AttentionNeed
    run: Run = field(eq=False)

    def __call__(
        self,
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Mapping[str, Tensor],
        batch: Batch,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        stored, lengths = Stored.shared(batch), _lengths(batch)
        stored.store_by_head(cache["k"], k_TKC)
        stored.store_by_head(cache["v"], v_TKC)
        k_BPKC, v_BPKC = (cache[name].transpose(1, 2) for name in ("k", "v"))
        return self.run(self.need, q_THC, k_BPKC, v_BPKC, lengths)


def _lengths(batch: Batch) -> Lengths:
    lengths: Lengths | None = batch.scratch.get(Lengths)
    if lengths is None:  # shared by all layers
        lengths = batch.scratch[Lengths] = Lengths.of(batch)
    return lengths


def flash(need: AttentionNeed) -> FlashAttend:
    """flash-attn 2: single tokens take its kernel for caches, which splits contexts."""
    module = import_module("flash_attn")
    return FlashAttend(need, partial(_flash_2, module))


def _flash_2(
    module: Any, need: AttentionNeed, q_THC: Tensor, k: Tensor, v: Tensor, lengths: Lengths
) -> Tensor:
    common = {
        "softmax_scale": need.scale,
        "causal": True,
        "window_size": _window(need),
        "softcap": need.soft_cap or 0.0,
        "block_table": lengths.tables_SM,
    }
    if lengths.single:
        out_S1HC: Tensor = module.flash_attn_with_kvcache(
            q_THC[:, None], k, v, cache_seqlens=lengths.contexts_S, **common
        )
        return out_S1HC[:, 0]
    ends_S = torch.cumsum(lengths.contexts_S, 0, dtype=torch.int32)
    out_THC: Tensor = module.flash_attn_varlen_func(
        q_THC,
        k,
        v,
        cu_seqlens_q=lengths.starts_S1,
        cu_seqlens_k=F.pad(ends_S, (1, 0)),
        max_seqlen_q=lengths.max_queries,
        max_seqlen_k=lengths.max_context,
        **common,
    )
    return out_THC


def flash3(need: AttentionNeed) -> FlashAttend:
    """FlashAttention 3: one kernel for prompts and single tokens."""
    module = import_module("flash_attn_interface")
    return FlashAttend(need, partial(_flash_3, module))


def _flash_3(
    module: Any, need: AttentionNeed, q_THC: Tensor, k: Tensor, v: Tensor, lengths: Lengths
) -> Tensor:
    out_THC: Tensor = module.flash_attn_with_kvcache(
        q_THC,
        k,
        v,
        cache_seqlens=lengths.contexts_S,
        page_table=lengths.tables_SM,
        cu_seqlens_q=lengths.starts_S1,
        max_seqlen_q=lengths.max_queries,
        softmax_scale=need.scale,
        causal=True,
        window_size=_window(need),
        softcap=need.soft_cap or 0.0,
    )
    return out_THC


def flash_torch(need: AttentionNeed) -> FlashAttend:
    """The FlashAttention 2 that torch brings."""
    module = import_module("torch.nn.attention.varlen")
    return FlashAttend(need, partial(_flash_torch, module))


def _flash_torch(
    module: Any, need: AttentionNeed, q_THC: Tensor, k: Tensor, v: Tensor, lengths: Lengths
) -> Tensor:
    out_THC: Tensor = module.varlen_attn(
        q_THC,
        k,
        v,
        lengths.starts_S1,
        None,
        lengths.max_queries,
        lengths.max_context,
        scale=need.scale,
        window_size=_window(need),
        enable_gqa=True,
        seqused_k=lengths.contexts_S,
        block_table=lengths.tables_SM,
    )
    return out_THC


def _window(need: AttentionNeed) -> tuple[int, int]:
    """Return how many tokens before and after its own a query attends to; -1: all."""
    return (-1 if need.sliding_window is None else need.sliding_window - 1, 0)
