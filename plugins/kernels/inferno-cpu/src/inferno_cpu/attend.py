"""One native call for a layer's attention: the step's keys and values into the cache, then every
query of the step.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, S sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import field, frozen
from torch import Tensor

from inferno.contracts import AttentionNeed
from inferno.nn.batch import Batch
from inferno_cpu import _native
from inferno_cpu.elementwise import DTYPES

_KINDS = {"auto": 0, "fp8_e4m3": 1, "int8": 2}


def build(need: AttentionNeed) -> NativeAttend:
    return NativeAttend(need)


@frozen
class NativeAttend:
    """One layer's attention."""

    need: AttentionNeed
    _static: tuple[tuple[int, int], tuple[int, int, int], tuple[float, float, int]] = field(
        init=False
    )
    """What is the same in every call: dtype and kind of the cache; sizes, scale, cap and window."""

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
    ) -> Tensor:
        before, sizes, (scale, soft_cap, window) = self._static
        step: tuple[int, int, int, int, int, int] = batch.scratch.get(_step) or _step(batch)
        q_THC, k_TKC, v_TKC = _packed(q_THC), _packed(k_TKC), _packed(v_TKC)
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
        )
        return out_THC


def _packed(x_TXC: Tensor) -> Tensor:
    """A token's heads lie side by side, as they do in a slice of a qkv matrix; tokens may be any
    distance apart."""
    dim = x_TXC.shape[-1]
    return x_TXC if x_TXC.stride(2) == 1 and x_TXC.stride(1) == dim else x_TXC.contiguous()


def _step(batch: Batch) -> tuple[int, int, int, int, int, int]:
    """Addresses of what the layers of a step share: slots, query starts, context lengths, tables;
    their stride and number."""
    slots_T, tables_SM = batch.slots_T, batch.blocks_SM
    found = batch.scratch[_step] = (
        slots_T.data_ptr(),
        batch.query_starts_S1.data_ptr(),
        batch.context_lens_S.data_ptr(),
        tables_SM.data_ptr(),
        tables_SM.stride(0),
        len(batch.context_lens_S),
    )
    return found
