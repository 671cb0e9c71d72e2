"""How a checkpoint format names what Hugging Face's checkpoints name otherwise: part of an
architecture's declaration (`Architecture.dialects`) and of a format's (`CheckpointFormat.dialect`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs
from attrs import field, frozen

from inferno.contracts import lazy


@frozen
class RowSplit:
    """A stored matrix that holds several of the model's, one below the other."""

    shares: Mapping[str, int | str]
    """Module path in the model -> its share of the rows: an integer, or the field of `config.json`
    that holds it. {"model.layers.{n}.mlp.gate_proj": 1, "model.layers.{n}.mlp.up_proj": 1}"""


@frozen
class RowJoin:
    """A matrix of the model that files store as several stacks, one matrix per head in each: for
    each head in turn, its rows in the first stack, then those in the next. It is read dense."""

    stacks: tuple[str, ...]
    """Module paths in the file."""
    transposed: tuple[str, ...] = ()
    """Those of `stacks` whose matrices have the model's rows as columns."""


@frozen(kw_only=True)
class Dialect:
    """With it, a file of another format reads as if it were the original checkpoint.

    `{n}` in a path stands for a layer's number. Examples are GGUF's, whose names are those of
    llama.cpp's converters (gguf-py's `constants.py`). A format has defaults: an architecture's own
    dialect lists where its files differ, and gives None for a default that does not hold.
    """

    architecture: str = ""
    """What files call the architecture: `general.architecture`, and the prefix of its metadata
    keys."""
    fields: Mapping[str, str | None] = field(factory=dict)
    """Field of `config.json` -> metadata key without the prefix: {"hidden_size":
    "embedding_length"}. What a file does not store is left out of the config. The rotary base and
    scaling, the vocabulary's size, the dtype and whether the head is tied are every model's and
    need no entry."""
    modules: Mapping[str, str | None] = field(factory=dict)
    """Module path in the file -> in the model: {"blk.{n}.attn_q":
    "model.layers.{n}.self_attn.q_proj"}. `{e}` in the latter stands for each matrix of a stack:
    {"blk.{n}.ffn_up_exps": "model.layers.{n}.mlp.experts.{e}.up_proj"}. A tensor whose last
    component differs too is named whole: {"blk.{n}.attn_sinks.weight":
    "model.layers.{n}.self_attn.sinks"}."""
    rows: Mapping[str, RowSplit] = field(factory=dict)
    """Module path in the file -> the model's modules whose rows it holds: {"blk.{n}.attn_qkv":
    RowSplit({"model.layers.{n}.self_attn.q_proj": "num_attention_heads", ...})}. Bias and weight
    are split alike, packed or not."""
    joins: Mapping[str, RowJoin] = field(factory=dict)
    """Module path in the model -> the stacks in the file that hold it head by head."""
    present: Mapping[str, str] = field(factory=dict)
    """Fields of `config.json` that say whether a file stores a tensor: {"qkv_bias":
    "blk.0.attn_q.bias"}."""
    values: Mapping[str, Mapping[Any, Any]] = field(factory=dict)
    """Fields whose values the file spells otherwise: {"scoring_func": {1: "softmax", 2:
    "sigmoid"}}."""
    constants: Mapping[str, Any] = field(factory=dict)
    """Fields of `config.json` that are the same for every file of this architecture."""
    config: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = field(
        default=None, converter=lazy.optional
    )
    """config(fields) -> the original `config.json`, of the fields named above: derives what files
    do not store, drops what only they have, replaces zeros that have a meaning. Imports no
    torch."""
    rotary_pairs: Mapping[str, str] = field(factory=dict)
    """Modules (by their path in the file) whose rows are stored rotary pair by pair, (i, i + C/2)
    side by side, and the metadata key of their number of heads: {"blk.{n}.attn_q":
    "attention.head_count"}."""
    added: Mapping[str, float] = field(factory=dict)
    """Modules (by their path in the file) whose weight is stored with this constant added to it:
    {"output_norm": 1.0}."""
    single_rows: tuple[str, ...] = ()
    """Modules (by their path in the file) whose matrix has one row, which files store as a
    vector."""
    priority: int = 0
    """Of two architectures that read files of one name, that of the higher priority does."""

    def over(self, defaults: Self) -> Self:
        """This dialect with a format's defaults for all that it does not say."""
        return attrs.evolve(
            self,
            fields=_over(self.fields, defaults.fields),
            modules=_over(self.modules, defaults.modules),
            rows={**self.rows, **_missing(defaults.rows, self.rows)},
        )


def _over(own: Mapping[str, str | None], defaults: Mapping[str, str | None]) -> dict[str, str]:
    both = {**own, **_missing(defaults, own)}
    return {name: other for name, other in both.items() if other is not None}


def _missing(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if name not in own}
