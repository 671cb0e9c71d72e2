"""Attention of one layer in one native call: store the step's keys and values, then attend.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, S sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import field, frozen
from torch import Tensor

from inferno.contracts import Attend, AttentionNeed, Waves
from inferno.nn.batch import Batch
from inferno_cpu import _native
from inferno_cpu.dtypes import DTYPES
from inferno_cpu.threads import use_torch_threads

_KINDS = {"auto": 0, "fp8_e4m3": 1, "int8": 2}


def build(need: AttentionNeed) -> Attend:
    use_torch_threads()
    return NativeWholeAttend(need) if need.bidirectional else NativeAttend(need)


@frozen
class NativeAttend:
    """Attention of one layer."""

    need: AttentionNeed
    _static: tuple[tuple[int, int], tuple[int, int, int], tuple[float, float, int]] = field(
        init=False
    )
    """Arguments of every call: dtype and cache kind; head sizes; scale, soft cap and window."""

    def __attrs_post_init__(self) -> None:
        need = self.need
        before = DTYPES[getattr(torch, need.dtype)], _KINDS[need.cache_dtype]
        sizes = need.num_heads, need.num_kv_heads, need.head_dim
        object.__setattr__(
            self,
            "_static",
            (before, sizes, (need.scale, need.soft_cap or 0.0, need.sliding_window or 0)),
        )

    def __call__(
        self,
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Mapping[str, Tensor],
        batch: Batch,
        sinks_H: Tensor | None = None,
        waves: Waves | None = None,
    ) -> Tensor:
        before, sizes, (scale, soft_cap, window) = self._static
        step: tuple[int, int, int, int, int, int] = batch.scratch.get(_step) or _step(batch)
        q_THC, k_TKC = _contiguous_heads(q_THC), _contiguous_heads(k_TKC)
        v_TKC = _contiguous_heads(v_TKC)
        out_THC = torch.empty(q_THC.shape, dtype=q_THC.dtype)
        scales = (
            (cache["k_scales"].data_ptr(), cache["v_scales"].data_ptr()) if before[1] else (0, 0)
        )
        _native.attend(
            *before,
            q_THC.data_ptr(),
            q_THC.stride(0),
            k_TKC.data_ptr(),
            k_TKC.stride(0),
            v_TKC.data_ptr(),
            v_TKC.stride(0),
            out_THC.data_ptr(),
            cache["k"].data_ptr(),
            cache["v"].data_ptr(),
            *scales,
            *step,
            *sizes,
            batch.block_size,
            scale,
            soft_cap,
            window,
            *_NO_WAVES if waves is None else _addresses(waves),
        )
        return out_THC


@frozen
class NativeWholeAttend:
    """Bidirectional attention of one layer. The step has all tokens of its sequences."""

    need: AttentionNeed

    def __call__(
        self,
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Mapping[str, Tensor],
        batch: Batch,
        sinks_H: Tensor | None = None,
        waves: Waves | None = None,
    ) -> Tensor:
        need = self.need
        q_THC, k_TKC, v_TKC = (_contiguous_heads(x) for x in (q_THC, k_TKC, v_TKC))
        out_THC = torch.empty(q_THC.shape, dtype=q_THC.dtype)
        _native.attend_whole(
            DTYPES[q_THC.dtype],
            q_THC.data_ptr(),
            q_THC.stride(0),
            k_TKC.data_ptr(),
            k_TKC.stride(0),
            v_TKC.data_ptr(),
            v_TKC.stride(0),
            out_THC.data_ptr(),
            batch.query_starts_S1.data_ptr(),
            len(batch.query_starts) - 1,
            need.num_heads,
            need.num_kv_heads,
            need.head_dim,
            need.scale,
            need.sliding_window or 0,
        )
        return out_THC


_NO_WAVES = (0, 0, 0, 0, 0)


def _addresses(waves: Waves) -> tuple[int, int, int, int, int]:
    """Return the addresses of amplitudes, used lines and lines, the stride of lines, and the number
    of waves."""
    used_KW, lines_LN = waves.used_KW, waves.lines_LN
    return (
        waves.amplitudes_THW.data_ptr(),
        used_KW.data_ptr(),
        lines_LN.data_ptr(),
        lines_LN.stride(0),
        used_KW.shape[1],
    )


def _contiguous_heads(x_TXC: Tensor) -> Tensor:
    """Return x with the heads of each token contiguous, copied only if they are not, as in a slice
    of a qkv matrix. Tokens may have any stride."""
    dim = x_TXC.shape[-1]
    return x_TXC if x_TXC.stride(2) == 1 and x_TXC.stride(1) == dim else x_TXC.contiguous()


def _step(batch: Batch) -> tuple[int, int, int, int, int, int]:
    """Return what the layers of a step share: the addresses of slots, query starts, context lengths
    and block tables, and the stride and number of the tables."""
    slots_T, tables_SM = batch.slots_T, batch.blocks_SM
    numbers = batch.scratch[_step] = (
        slots_T.data_ptr(),
        batch.query_starts_S1.data_ptr(),
        batch.context_lens_S.data_ptr(),
        tables_SM.data_ptr(),
        tables_SM.stride(0),
        len(batch.context_lens_S),
    )
    return numbers
