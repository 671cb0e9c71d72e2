"""Attention of one layer: what is launched, over which grid and with which tiles.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, V value dim, S sequences, P
splits of a context.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
import triton
from attrs import frozen
from torch import Tensor

from inferno.contracts import AttentionNeed, Waves
from inferno.nn.batch import Batch
from inferno_triton import paged
from inferno_triton.chips import chip_at
from inferno_triton.tiles import Chip, Work, tile_of

STRETCH = 512
"""Keys after which a row's sums begin anew, in prompts as in single tokens: a multiple of every
tile's keys. The fewer, the more programs share the context of a single token; the more, the less is
added up."""

MAX_PARTS = 1 << 25
"""Elements of float32 that the stretches of a step may have in memory, to be computed at once."""

_PROGRAMS = 16
"""Programs for each multiprocessor that a step of single tokens is split into, of which two or
three run at once: one long context among short ones must occupy more than a few."""

_LONG, _LEAST = 16, 4
"""Stretches of a context from which it is split though every processor has a program, and the
fewest programs that then share one. The sum of the parts costs as much as 2000 keys."""

AT_ONCE = 4
"""Stretches that a program loads at once to add them."""

_STORED = 16
"""Tokens of a program that stores."""


@frozen(kw_only=True)
class Shape:
    """How a head dimension is computed: in tiles of powers of two, `first` + `rest` elements."""

    first: int
    rest: int

    @classmethod
    @cache  # asked in every layer of a step that is not replayed
    def of(cls, dim: int) -> Shape:
        first = max(16, 1 << (dim.bit_length() - 1))
        rest = max(16, triton.next_power_of_2(dim - first)) if dim > first else 0
        return cls(first=first, rest=rest)


def work_of(need: AttentionNeed, *, single: bool) -> Work:
    """Return the work of a step, of single tokens or not. Words are for elements of 8 bits that are
    multiplied in float16, and for heads whose quarters are rows of a matrix instruction."""
    if need.latent_dim is not None:
        return "latent"
    whole = all(
        shape.rest == 0 and shape.first >= 64
        for shape in (Shape.of(need.head_dim), Shape.of(need.output_dim))
    )
    if single and whole and need.cache_dtype != "auto" and need.dtype != "float32":
        return "words"
    return "tokens" if single else "prompts"


def build(need: AttentionNeed) -> TritonAttend:
    return TritonAttend(need, chip_at(torch.device(need.device.torch_name)))


@frozen
class TritonAttend:
    """One layer's attention."""

    need: AttentionNeed
    chip: Chip

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
        tensors = self._cache(cache)
        self._store(_unit_stride(k_TKC), _unit_stride(v_TKC), tensors, batch.slots_T)
        return self._attend(_unit_stride(q_THC), tensors, batch, sinks_H, waves)

    @property
    def _kind(self) -> str:
        """How the kernels read the cache."""
        if self.need.cache_dtype == "fp8_e4m3":
            return "fp8" if self.chip.fp8 else "fp8_bits"
        return self.need.cache_dtype

    def _cache(self, cache: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return keys, values and their scales; values are keys in latent attention, and scales
        any tensor if there are none."""
        keys = cache["k"]
        values = keys if self.need.latent_dim is not None else cache["v"]
        if self._kind == "auto":
            return keys, values, keys, values
        if self._kind == "fp8_bits":
            keys, values = keys.view(torch.uint8), values.view(torch.uint8)
        scales = cache["k_scales"]
        return keys, values, scales, cache.get("v_scales", scales)

    def _store(
        self, k_TKC: Tensor, v_TKC: Tensor, cache: tuple[Tensor, ...], slots_T: Tensor
    ) -> None:
        (T, K, C), V = k_TKC.shape, v_TKC.shape[-1]
        paged.store[(triton.cdiv(T, _STORED), K)](
            k_TKC,
            v_TKC,
            *cache,
            slots_T,
            T,
            *k_TKC.stride()[:2],
            *v_TKC.stride()[:2],
            HEADS=K,
            C=C,
            V=V,
            CP=triton.next_power_of_2(C),
            VP=triton.next_power_of_2(V),
            PAGE=cache[0].shape[2],
            BT=_STORED,
            VALUES=self.need.latent_dim is None,
            KIND=self._kind,
        )

    def _attend(
        self,
        q_THC: Tensor,
        cache: tuple[Tensor, ...],
        batch: Batch,
        sinks_H: Tensor | None,
        waves: Waves | None,
    ) -> Tensor:
        need, (T, H, C) = self.need, q_THC.shape
        K, V = need.num_kv_heads, need.output_dim
        S, page, G = len(batch.context_lens), cache[0].shape[2], H // K
        single = S == T
        keys, values = Shape.of(C), Shape.of(V)
        work = work_of(need, single=single)
        latent = work == "latent"
        tile = tile_of(self.chip, work, max(C, V), q_THC.element_size(), page)
        heads = min(G, tile.rows)  # of one program
        queries = 1 if single else tile.rows // heads
        programs = (S if single else T // queries + S, K * triton.cdiv(G, heads))
        longest = batch.blocks_SM.shape[1] * page  # of any step of this shape
        P = triton.cdiv(longest, STRETCH)
        if need.sliding_window is not None:
            P = min(P, triton.cdiv(need.sliding_window + queries, STRETCH) + 1)
        # How a context is shared changes no bit. Prompts are split only if processors would idle:
        # their parts are as large as their keys.
        sharing = min(P, _PROGRAMS * self.chip.processors // (programs[0] * programs[1]))
        idle = programs[0] * programs[1] <= self.chip.processors
        uneven = single and P >= _LONG and sharing >= _LEAST
        split = sharing > 1 and (idle or uneven) and T * H * P * V <= MAX_PARTS
        least = 16
        if work == "words":
            least = self.chip.narrow
            cache = (*(x.view(torch.int32) for x in cache[:2]), *cache[2:])
        out_THV = q_THC.new_empty(T, H, V)
        parts = sums = counts = out_THV
        if split:
            parts = q_THC.new_empty(T, H, P, V, dtype=torch.float32)
            sums = q_THC.new_empty(T, H, P, 2, dtype=torch.float32)
            counts = q_THC.new_empty(T, H, dtype=torch.int32)
        sinks = q_THC if sinks_H is None else sinks_H
        paged.attend[(*programs, sharing if split else 1)](
            q_THC,
            *cache,
            sinks,
            batch.blocks_SM,
            batch.query_starts_S1,
            batch.context_lens_S,
            parts,
            sums,
            counts,
            *_arguments(waves, q_THC),
            need.scale,
            need.soft_cap or 1.0,
            need.sliding_window or 0,
            *q_THC.stride()[:2],
            batch.blocks_SM.stride(0),
            S,
            P,
            HEADS=K,
            G=G,
            GB=heads,
            C=C,
            C1=keys.first,
            C2=keys.rest,
            V=V,
            V1=values.first,
            V2=values.rest,
            VS=C if latent else V,
            PAGE=page,
            BN=tile.keys,
            BQ=queries,
            BM=max(least, triton.next_power_of_2(queries * heads)),
            KIND=self._kind,
            WORDS=work == "words",
            REUSE=latent and V == keys.first,
            WINDOW=need.sliding_window is not None,
            CAP=need.soft_cap is not None,
            SINKS=sinks_H is not None,
            STRETCH=STRETCH,
            LONG=P > 1 and not split,
            SPLIT=split,
            SINGLE=single,
            WAVES=waves is not None,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        if split:
            paged.merge[(T * H,)](
                parts,
                sums,
                counts,
                sinks,
                out_THV,
                P,
                H=H,
                V=V,
                VP=triton.next_power_of_2(V),
                SINKS=sinks_H is not None,
                BS=AT_ONCE,
            )
        return out_THV


def _arguments(waves: Waves | None, like: Tensor) -> tuple[Tensor, Tensor, Tensor, int, int]:
    """Return amplitudes, used lines and lines, the distance between lines and the number of waves;
    any tensors if there are none."""
    if waves is None:
        return like, like, like, 0, 0
    lines_LN, used_KW = waves.lines_LN, waves.used_KW
    return waves.amplitudes_THW, used_KW, lines_LN, lines_LN.stride(0), used_KW.shape[1]


def _unit_stride(x_TXC: Tensor) -> Tensor:
    """Return x with contiguous heads, copied only if they are not. Tokens and heads may have any
    stride, as in a slice of a qkv matrix."""
    return x_TXC if x_TXC.stride(2) == 1 else x_TXC.contiguous()
