"""Ranks: processes that compute each step together, each with a part of every layer.

How a model is divided follows from its architecture's `divides`, which says what the rows or
columns of each kind of matrix are, and from the sizes: the plan and the modules ask the same
`Shard`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import evolve, frozen

from inferno.contracts.attention import AttentionSpec

Range = tuple[int, int]
"""From the first to before the second."""

Divided = Literal["heads", "from heads", "inner", "two inner", "from inner", "vocabulary"]
"""What a matrix is divided by: its rows by attention heads, by an MLP's inner width (of one matrix,
or of two that are stored as one) or by tokens of the vocabulary; or its columns by the heads or the
inner width that it takes as input."""

COLUMNS: frozenset[Divided] = frozenset({"from heads", "from inner"})
"""Those of which a rank has some columns: the ranks' products are summed."""

DECODER: Mapping[str, Divided] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj"), "heads"),
    "o_proj": "from heads",
    **dict.fromkeys(("gate_proj", "up_proj"), "inner"),
    "gate_up_proj": "two inner",
    "down_proj": "from inner",
    **dict.fromkeys(("embed_tokens", "lm_head"), "vocabulary"),
}
"""`Architecture.divides` of a decoder whose matrices have the usual names."""


@frozen(kw_only=True)
class Shard:
    """One of `ranks` processes, and how it shares matrices with the others."""

    rank: int = 0
    ranks: int = 1
    unit: int = 1
    """Inner widths are shared in whole multiples of this many: blocks of a packed matrix are not
    cut."""
    attention: bool = True
    """Whether attention is divided by heads. If not, every rank computes all of it."""

    def divides(self, size: int, unit: int | None = None) -> bool:
        """Whether every rank gets a part of so many rows or columns. If not, each has them all."""
        return self.ranks > 1 and -(-size // (unit or self.unit)) >= self.ranks

    def shares(self, size: int, unit: int | None = None) -> tuple[Range, ...]:
        """Return each rank's part, in whole units and as even as they allow."""
        unit, ranks = unit or self.unit, self.ranks
        units = -(-size // unit)
        edges = [min(size, units * rank // ranks * unit) for rank in range(ranks + 1)]
        return tuple((edges[rank], edges[rank + 1]) for rank in range(ranks))

    def share(self, size: int, unit: int | None = None) -> Range:
        """Return this rank's part."""
        return self.shares(size, unit)[self.rank]

    def heads(self, spec: AttentionSpec) -> tuple[Range, Range]:
        """Return this rank's query heads, and the key/value heads that they share: where there are
        fewer of these than ranks, several ranks have the same."""
        each, group = spec.num_heads // self.ranks, spec.num_heads // spec.num_kv_heads
        start, stop = self.rank * each, (self.rank + 1) * each
        return (start, stop), (start // group, -(-stop // group))

    def local(self, spec: AttentionSpec) -> AttentionSpec:
        """Return what a rank computes of a layer of attention."""
        if self.ranks == 1 or not self.attention:
            return spec
        (first, stop), (first_kv, stop_kv) = self.heads(spec)
        return evolve(spec, num_heads=stop - first, num_kv_heads=stop_kv - first_kv)


def divides_heads(spec: AttentionSpec, ranks: int) -> bool:
    """Whether `ranks` can share a layer's heads: each has as many query heads, and the key/value
    heads of whole groups of them, or of a part of one group."""
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)
