"""Where a step's keys and values go in a paged cache, for attention written in torch.

Suffixes: T packed tokens, K key/value heads, C head dim, N slots of the cache, B blocks of it, P
tokens of a block.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor

from inferno.nn.batch import Batch


@frozen(eq=False)
class Stored:
    """The slots of a step's tokens. Nothing is stored for padding rows: they write what another
    token writes, or if there is no other, what is there already. So shapes are the same in every
    step, as a captured one needs."""

    slots_T: Tensor
    token_T: Tensor | None = None
    """The token that each token writes: itself, or the one with the highest slot. None: no row is
    padding."""
    nothing: Tensor | None = None
    """Whether all rows are padding."""

    @classmethod
    def of(cls, batch: Batch) -> Stored:
        slots_T = batch.slots_T
        if not may_pad(batch):
            return cls(slots_T)
        own_T = torch.arange(len(slots_T), device=slots_T.device)
        token_T = torch.where(slots_T < 0, slots_T.argmax(), own_T)
        return cls(slots_T[token_T].clamp_min(0), token_T, slots_T.amax() < 0)

    @classmethod
    def shared(cls, batch: Batch) -> Stored:
        """Return the slots of the step, computed by the first layer that asks."""
        if cls not in batch.scratch:
            batch.scratch[cls] = cls.of(batch)
        stored: Stored = batch.scratch[cls]
        return stored

    def store(self, cache_BPKC: Tensor, x_TKC: Tensor) -> None:
        """Store into a cache whose tokens are contiguous."""
        cache_NKC = cache_BPKC.flatten(0, 1)
        if self.token_T is not None and self.nothing is not None:
            x_TKC = torch.where(self.nothing, cache_NKC[self.slots_T], x_TKC[self.token_T])
        cache_NKC.index_copy_(0, self.slots_T, x_TKC)

    def store_by_head(self, cache_BKPC: Tensor, x_TKC: Tensor) -> None:
        """Store into a cache whose tokens of a block and head are contiguous."""
        P = cache_BKPC.shape[2]
        block_T, offset_T = self.slots_T // P, self.slots_T % P
        if self.token_T is not None and self.nothing is not None:
            x_TKC = torch.where(self.nothing, cache_BKPC[block_T, :, offset_T], x_TKC[self.token_T])
        cache_BKPC[block_T, :, offset_T] = x_TKC

    def store_vectors(self, cache: Mapping[str, Tensor], name: str, x_TKC: Tensor) -> None:
        """Store keys (`k`) or values (`v`) into a cache whose tokens are contiguous. If it has
        `k_scales` or `v_scales`: in 8 bits, as codes and a scale for each token and head."""
        scales_BPK1 = cache.get(f"{name}_scales")
        if scales_BPK1 is None:
            return self.store(cache[name], x_TKC)
        exact_TKC, dtype = x_TKC.float(), cache[name].dtype
        integers = not dtype.is_floating_point
        largest = torch.iinfo(dtype).max if integers else torch.finfo(dtype).max
        scale_TK1 = exact_TKC.abs().amax(-1, keepdim=True) / largest
        codes_TKC = exact_TKC / scale_TK1.clamp_min(torch.finfo(torch.float32).tiny)
        codes_TKC = (codes_TKC.round() if integers else codes_TKC).to(dtype)
        self.store(as_bytes(cache[name]), as_bytes(codes_TKC))
        self.store(scales_BPK1, scale_TK1)


def as_bytes(codes: Tensor) -> Tensor:
    """Return 8-bit elements as integers, because torch does not copy rows of 8-bit floats."""
    return codes.view(torch.uint8)


def may_pad(batch: Batch) -> bool:
    """Return whether a row may be padding, now or when a captured step runs again."""
    return batch.captured or 0 in batch.context_lens
