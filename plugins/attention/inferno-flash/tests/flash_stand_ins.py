"""Modules that stand in for the packages of FlashAttention: the functions that we call, in torch,
with the arguments that their documentation admits.

Suffixes: T packed queries, S sequences, Q queries of a sequence, H query heads, K key/value heads,
L keys of a sequence, C head dim, B blocks, P tokens of a block, M blocks of the longest sequence.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def attend(
    q_QHC: Tensor,
    k_BPKC: Tensor,
    v_BPKC: Tensor,
    table_M: Tensor,
    length: int,
    *,
    scale: float,
    window: tuple[int, int],
    cap: float,
) -> Tensor:
    """Attention of the last queries of one sequence, (Q, H, C)."""
    Q, H, C = q_QHC.shape
    if length == 0:
        return torch.zeros_like(q_QHC)
    K = k_BPKC.shape[2]
    k_LHC, v_LHC = (
        x[table_M.long()].flatten(0, 1)[:length].double().repeat_interleave(H // K, 1)
        for x in (k_BPKC, v_BPKC)
    )
    scores_HQL = torch.einsum("qhc,lhc->hql", q_QHC.double(), k_LHC) * scale
    if cap:
        scores_HQL = cap * torch.tanh(scores_HQL / cap)
    back_QL = torch.arange(length - Q, length)[:, None] - torch.arange(length)
    hidden_QL = back_QL < 0
    if window[0] >= 0:
        hidden_QL |= back_QL > window[0]
    weights_HQL = scores_HQL.masked_fill(hidden_QL, float("-inf")).softmax(-1)
    return torch.einsum("hql,lhc->qhc", weights_HQL, v_LHC).to(q_QHC.dtype)


def check(q: Tensor, k: Tensor, v: Tensor, table_SM: Tensor, multiple: int, sequences: int) -> None:
    B, P, K, C = k.shape
    assert q.dtype in HALF and k.dtype == v.dtype == q.dtype
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert v.shape == k.shape and q.shape[-1] == C and q.shape[-2] % K == 0
    assert P % multiple == 0, "the size of a block"
    assert table_SM.dtype == torch.int32 and table_SM.is_contiguous()
    assert len(table_SM) == sequences


def packed(
    q_THC: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    lengths: Tensor,
    table_SM: Tensor,
    **more: Any,
) -> Tensor:
    """Attention of packed sequences, by their starts and contexts."""
    assert starts.dtype == lengths.dtype == torch.int32
    assert starts[-1] == len(q_THC) and len(starts) == len(lengths) + 1
    parts = [
        attend(q_THC[a:b], k, v, table, int(length), **more)
        for a, b, table, length in zip(
            starts.tolist(), starts.tolist()[1:], table_SM, lengths.tolist(), strict=False
        )
    ]
    return torch.cat(parts)


def flash_attn() -> ModuleType:
    """flash-attn 2."""

    def flash_attn_with_kvcache(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        cache_seqlens: Tensor,
        block_table: Tensor,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
    ) -> Tensor:
        S, Q, H, C = q.shape
        check(q, k_cache, v_cache, block_table, 256, S)
        assert causal and cache_seqlens.dtype == torch.int32 and cache_seqlens.shape == (S,)
        starts = torch.arange(S + 1, dtype=torch.int32) * Q
        out = packed(
            q.flatten(0, 1), k_cache, v_cache, starts, cache_seqlens, block_table,
            scale=softmax_scale, window=window_size, cap=softcap,
        )  # fmt: skip
        return out.view(S, Q, H, C)

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        block_table: Tensor,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
    ) -> Tensor:
        check(q, k, v, block_table, 256, len(cu_seqlens_q) - 1)
        lengths, queries = cu_seqlens_k.diff(), cu_seqlens_q.diff()
        assert causal and cu_seqlens_k.dtype == torch.int32 and cu_seqlens_k[0] == 0
        assert queries.max() <= max_seqlen_q and lengths.max() <= max_seqlen_k
        return packed(
            q, k, v, cu_seqlens_q, lengths, block_table,
            scale=softmax_scale, window=window_size, cap=softcap,
        )  # fmt: skip

    return _module("flash_attn", flash_attn_with_kvcache, flash_attn_varlen_func)


def flash_attn_interface() -> ModuleType:
    """FlashAttention 3."""

    def flash_attn_with_kvcache(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        cache_seqlens: Tensor,
        page_table: Tensor,
        cu_seqlens_q: Tensor,
        max_seqlen_q: int,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
    ) -> Tensor:
        check(q, k_cache, v_cache, page_table, 1, len(cache_seqlens))
        assert causal and cu_seqlens_q.diff().max() <= max_seqlen_q
        return packed(
            q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table,
            scale=softmax_scale, window=window_size, cap=softcap,
        )  # fmt: skip

    return _module("flash_attn_interface", flash_attn_with_kvcache)


def torch_varlen() -> ModuleType:
    """torch.nn.attention.varlen."""

    def varlen_attn(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
        enable_gqa: bool,
        seqused_k: Tensor,
        block_table: Tensor,
    ) -> Tensor:
        check(query, key, value, block_table, 256, len(seqused_k))
        assert cu_seq_k is None and enable_gqa and window_size[1] == 0
        assert cu_seq_q.diff().max() <= max_q and seqused_k.max() <= max_k
        return packed(
            query, key, value, cu_seq_q, seqused_k, block_table,
            scale=scale, window=window_size, cap=0.0,
        )  # fmt: skip

    return _module("torch.nn.attention.varlen", varlen_attn)


def _module(name: str, *functions: Any) -> ModuleType:
    module = ModuleType(name)
    for function in functions:
        setattr(module, function.__name__, function)
    return module
