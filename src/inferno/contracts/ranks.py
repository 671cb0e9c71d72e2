"""Ranks: processes that compute each step together, each with a part of every layer.

How a model is divided follows from its architecture's `divides`, which says what the rows or
columns of each kind of matrix are, and from the sizes: the plan and the modules ask the same
`Shard`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, overload

from attrs import evolve, frozen

from inferno.contracts.attention import AttentionSpec
from inferno.contracts.states import StateSpec

_EXPERT = re.compile(r"^((?:.*\.)?experts)\.(\d+)\.")
Range = tuple[int, int]
"""From the first to before the second."""

Divided = Literal[
    "heads",
    "query heads",
    "from heads",
    "inner",
    "two inner",
    "from inner",
    "state heads",
    "state inputs",
    "from state",
    "outputs",
    "vocabulary",
]
"""What a matrix is divided by: its rows by attention heads as wide as the spec's (queries, keys,
values, or all three), by query heads of any width, by an MLP's inner width (of one matrix, or of
two that are stored as one), by heads of a recurrent state, by these and the groups that a state's
convolution sees (`StateSpec.group_channels`), by tokens of the vocabulary, or one by one, where
each rank gathers the results of all; or its columns by the heads, the inner width or the heads of a
state that it takes as input."""

COLUMNS: frozenset[Divided] = frozenset({"from heads", "from inner", "from state"})
"""Those of which a rank has some columns: the ranks' products are summed."""
ATTENTION: frozenset[Divided] = frozenset({"heads", "query heads", "from heads"})
STATE: frozenset[Divided] = frozenset({"state heads", "state inputs", "from state"})

DECODER: Mapping[str, Divided] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj"), "heads"),
    "o_proj": "from heads",
    **dict.fromkeys(("gate_proj", "up_proj"), "inner"),
    "gate_up_proj": "two inner",
    "down_proj": "from inner",
    **dict.fromkeys(("embed_tokens", "lm_head"), "vocabulary"),
}
"""`Architecture.divides` of a decoder whose matrices have the usual names."""

MAMBA2: Mapping[str, Divided] = {"in_proj": "state inputs", "out_proj": "from state"}
"""That of `nn.Mamba2Mixer`."""


def expert_of(path: str) -> tuple[str, int] | None:
    """Return the experts' path and the number of the routed expert that a matrix belongs to, by its
    module's path: `model.layers.0.mlp.experts` and 3. None if it belongs to none."""
    parts = _EXPERT.match(path)
    return None if parts is None else (parts[1], int(parts[2]))


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
    states: bool = True
    """Whether recurrent states are divided by heads."""
    columns: bool = True
    """Whether matrices are cut by columns. If not, ranks gather what each of them would multiply,
    compute some outputs of these matrices, and gather the results."""
    experts: bool = False
    """Whether each rank has some of the routed experts, whole, instead of a part of each."""
    own_tokens: bool = False
    """Whether the ranks are engines, each with tokens of its own (`--dp N --ep`): routed experts
    are dealt out to them, and each has all other matrices whole."""

    def divides(self, size: int, unit: int | None = None) -> bool:
        """Whether every rank gets a part of so many rows or columns. If not, each has them all."""
        return (
            self.ranks > 1 and not self.own_tokens and -(-size // (unit or self.unit)) >= self.ranks
        )

    def shares(self, size: int, unit: int | None = None) -> tuple[Range, ...]:
        """Return each rank's part, in whole units and as even as they allow."""
        unit, ranks = unit or self.unit, self.ranks
        units = -(-size // unit)
        edges = [min(size, units * rank // ranks * unit) for rank in range(ranks + 1)]
        return tuple((edges[rank], edges[rank + 1]) for rank in range(ranks))

    def share(self, size: int, unit: int | None = None) -> Range:
        """Return this rank's part."""
        return self.shares(size, unit)[self.rank]

    def expert_of(self, path: str) -> tuple[str, int] | None:
        """Return what the function of that name does; None if experts are not dealt out."""
        return expert_of(path) if self.experts else None

    def heads(self, spec: AttentionSpec | StateSpec) -> tuple[Range, Range]:
        """Return this rank's query heads, and the key/value heads that they share; or its heads of
        a state, and their groups. Where there are fewer of these than ranks, several ranks have the
        same."""
        heads, groups = counts(spec)
        each, group = heads // self.ranks, heads // groups
        start, stop = self.rank * each, (self.rank + 1) * each
        return (start, stop), (start // group, -(-stop // group))

    @overload
    def local(self, spec: AttentionSpec) -> AttentionSpec: ...
    @overload
    def local(self, spec: StateSpec) -> StateSpec: ...
    @overload
    def local(self, spec: AttentionSpec | StateSpec) -> AttentionSpec | StateSpec: ...
    def local(self, spec: AttentionSpec | StateSpec) -> AttentionSpec | StateSpec:
        """Return what a rank computes of a layer of attention, or keeps of a state."""
        attended = isinstance(spec, AttentionSpec)
        if self.ranks == 1 or not (self.attention if attended else self.states):
            return spec
        (first, stop), (first_group, stop_group) = self.heads(spec)
        if isinstance(spec, AttentionSpec):
            return evolve(spec, num_heads=stop - first, num_kv_heads=stop_group - first_group)
        return spec.part(stop - first, stop_group - first_group)


@frozen(kw_only=True)
class LayerSpan:
    """The layers that a pipeline stage has: those from `first` to before `stop`."""

    first: int
    stop: int
    layers: int
    """How many the model has."""
    predicts: bool = False
    """Whether it has layers of multi-token prediction too, which read the embedding."""

    @property
    def begins(self) -> bool:
        """Whether it has the first layer, and with it the embedding."""
        return self.first == 0

    @property
    def ends(self) -> bool:
        """Whether it has the last layer, and with it the final norm and the output head."""
        return self.stop == self.layers


def counts(spec: AttentionSpec | StateSpec) -> tuple[int, int]:
    """Return a layer's heads, and the groups that share something: keys and values, or what a
    state's groups have."""
    if isinstance(spec, AttentionSpec):
        return spec.num_heads, spec.num_kv_heads
    return spec.heads, spec.groups or spec.heads


def divides_heads(spec: AttentionSpec | StateSpec, ranks: int) -> bool:
    """Whether `ranks` can share a layer's heads: each has as many, and whole groups of them, or a
    part of one group."""
    heads, groups = counts(spec)
    return heads > 0 and heads % ranks == 0 and (groups % ranks == 0 or ranks % groups == 0)
