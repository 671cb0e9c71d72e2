"""Queries of a step that are computed together, and the rows of the cache that hold their keys.

Suffixes: S sequences, Q queries of a sequence, K key/value heads, L keys (padded context), C head
dim, N rows of the cache (slots x key/value heads).
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from torch import Tensor

from inferno.attention.stored import as_bytes

Index = Tensor | slice


@frozen(eq=False)
class Part:
    """Queries that are computed together: one of each of several sequences, or several of one."""

    tokens: Index
    """Of the S · Q queries in T."""
    rows_N: Tensor
    """Rows of their keys in the flat cache, S x K x L."""
    hidden_SQL: Tensor
    """True where a query must not attend."""
    padding_S: Tensor | None
    """True for padding rows, if there may be any."""

    def gather(self, cache: Mapping[str, Tensor], name: str) -> Tensor:
        """Return the keys (`k`) or values (`v`) of the part's sequences, (S, K, L, C); in float32
        if the cache has scales for them."""
        if (scales_BPK1 := cache.get(f"{name}_scales")) is None:
            return self._rows(cache[name])
        codes_SKLC = self._rows(as_bytes(cache[name])).view(cache[name].dtype)
        return codes_SKLC.float() * self._rows(scales_BPK1)

    def _rows(self, cache_BPKC: Tensor) -> Tensor:
        K, C = cache_BPKC.shape[-2:]
        S, _, L = self.hidden_SQL.shape
        return cache_BPKC.reshape(-1, C).index_select(0, self.rows_N).view(S, K, L, C)
