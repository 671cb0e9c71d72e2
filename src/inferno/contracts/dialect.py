"""How a checkpoint format names what Hugging Face's checkpoints name differently: part of an
architecture's declaration (`Architecture.dialects`) and of a format's
(`CheckpointFormat.dialect`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs
from attrs import field, frozen

from inferno.contracts import lazy


@frozen
class RowSplit:
    """A stored matrix that holds several of the model's matrices, stacked along the rows."""

    shares: Mapping[str, int | str]
    """Module path in the model -> its share of the rows: an integer, or the field of `config.json`
    that holds it. {"model.layers.{n}.mlp.gate_proj": 1, "model.layers.{n}.mlp.up_proj": 1}"""


@frozen
class RowJoin:
    """A matrix of the model that files store as several stacks with one matrix per head. Its rows
    are, head by head, those of the first stack, then those of the next. It is read as a dense
    matrix."""

    stacks: tuple[str, ...]
    """Module paths in the file."""
    transposed: tuple[str, ...] = ()
    """Those of `stacks` whose matrices have the model's rows as columns."""


@frozen(kw_only=True)
class Recast:
    """The same model by another config and other tensors: as files of a format have it."""

    config: Mapping[str, Any]
    """Its `config.json`."""
    splits: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Module of the model -> those that hold its rows instead, in equal shares:
    {"model.layers.{n}.mlp.gate_up_proj": ("model.layers.{n}.mlp.gate_proj", ...)}"""
    factors: Mapping[str, tuple[tuple[int, float], ...]] = field(factory=dict)
    """Tensor -> what its rows are multiplied by, from the first on: how many, and a factor. The
    last one is that of all rows that follow, and its number is 0."""
    copies: Mapping[str, str] = field(factory=dict)
    """A tensor that the model lacks -> the one whose values it has before they are multiplied:
    {"lm_head.weight": "model.embed_tokens.weight"}"""


@frozen(kw_only=True)
class Dialect:
    """Maps a file of another format to the original checkpoint's names and values.

    `{n}` in a path is a layer's index. The examples are GGUF's, with the names of llama.cpp's
    converters (gguf-py's `constants.py`). An architecture's dialect lists only where its files
    differ from the format's defaults; None cancels a default.
    """

    architecture: str = ""
    """The architecture's name in files: `general.architecture`, and the prefix of its metadata
    keys."""
    fields: Mapping[str, str | None] = field(factory=dict)
    """Field of `config.json` -> metadata key without the prefix: {"hidden_size":
    "embedding_length"}. Fields that a file does not store are left out of the config. The rotary
    base and scaling, the vocabulary size, the dtype and weight tying are common to all models and
    need no entry."""
    modules: Mapping[str, str | None] = field(factory=dict)
    """Module path in the file -> in the model: {"blk.{n}.attn_q":
    "model.layers.{n}.self_attn.q_proj"}. `{e}` in the latter is the index of a matrix in a stack:
    {"blk.{n}.ffn_up_exps": "model.layers.{n}.mlp.experts.{e}.up_proj"}. If a tensor's last
    component differs too, its full names are given: {"blk.{n}.attn_sinks.weight":
    "model.layers.{n}.self_attn.sinks"}."""
    rows: Mapping[str, RowSplit] = field(factory=dict)
    """Module path in the file -> the model's modules whose rows it holds: {"blk.{n}.attn_qkv":
    RowSplit({"model.layers.{n}.self_attn.q_proj": "num_attention_heads", ...})}. Bias and weight
    are split alike, packed or not."""
    joins: Mapping[str, RowJoin] = field(factory=dict)
    """Module path in the model -> the stacks in the file that hold it head by head."""
    layers_with: Mapping[str, str] = field(factory=dict)
    """Fields that only files have -> a tensor of some layers: the field is a list that says of each
    layer whether it has the tensor. {"stores_values": "blk.{n}.attn_v.weight"}"""
    present: Mapping[str, str] = field(factory=dict)
    """Boolean fields of `config.json` -> the tensor that a file stores if they are true:
    {"qkv_bias": "blk.0.attn_q.bias"}, or of any layer: {"use_bias": "blk.{n}.ssm_in.bias"}."""
    values: Mapping[str, Mapping[Any, Any]] = field(factory=dict)
    """Fields whose values files spell differently: {"scoring_func": {1: "softmax", 2:
    "sigmoid"}}."""
    constants: Mapping[str, Any] = field(factory=dict)
    """Fields of `config.json` that are the same for every file of this architecture."""
    config: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = field(
        default=None, converter=lazy.optional
    )
    """config(fields) -> the original `config.json`, from the fields above: derives fields that
    files do not store, drops those that only files have, replaces zeros used as markers. Imports no
    torch."""
    inverse: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = field(
        default=None, converter=lazy.optional
    )
    """inverse(config) -> fields that only files have, for writing them: what `config` drops, from
    the original `config.json`. Imports no torch."""
    rotary_pairs: Mapping[str, str] = field(factory=dict)
    """Modules, by path in the file, whose rows are stored with rotary pairs (i, i + C/2)
    interleaved -> the metadata key of their number of heads: {"blk.{n}.attn_q":
    "attention.head_count"}."""
    added: Mapping[str, float] = field(factory=dict)
    """Modules, by path in the file, whose weight is stored with this constant added:
    {"output_norm": 1.0}."""
    squeezed: Mapping[str, int] = field(factory=dict)
    """Modules, by path in the file -> the axis of their weight that files leave out, because its
    length is 1: {"blk.{n}.ffn_gate_inp_shexp": 0} is a matrix of one row, stored as a vector."""
    matrices: Mapping[str, str] = field(factory=dict)
    """Vectors that files store as matrices, by their full name in the file -> the field of
    `config.json` with the number of rows: {"blk.{n}.ssm_norm.weight": "n_groups"}."""
    axes: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """Tensors, by their full name in the file, whose axes of length 1 differ from file to file ->
    the lengths of the model's axes, with 0 for that of the file's last axis and -1 for what is
    left: {"blk.{n}.ssm_conv1d_q.weight": (-1, 1, 0)}."""
    decays: frozenset[str] = frozenset()
    """Tensors, by their full name in the file, whose values v are stored as -exp(v):
    {"blk.{n}.ssm_a"}."""
    recast: Callable[[Mapping[str, Any]], Recast | None] | None = field(
        default=None, converter=lazy.optional
    )
    """recast(config) -> the model of that `config.json` as files have it, if their names and fields
    do not fit it as it is; None if they do. Asked before a model is written. Imports no torch."""
    variants: tuple[Dialect, ...] = ()
    """Dialects of the same architecture's other files: under another name, or that differ only in
    how a model is written."""
    writes: Callable[[Mapping[str, Any]], bool] | None = field(
        default=None, converter=lazy.optional
    )
    """Of a variant: whether models of that `config.json` are written with it. Imports no torch."""
    strip_after: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Tokenizers, by their name in files, whose added tokens also match the whitespace after them,
    which files do not say -> those that do not: {"llama": ("<s>", "<unk>")}."""
    mark: str = ""
    """A tensor that its files have, and those of other architectures under the same name have not:
    "cls.output.weight" for a classifier's, whose encoder alone has other files. Empty: it reads
    those with no other architecture's mark."""
    priority: int = 0
    """If two architectures claim one name, the one with the higher priority reads the file."""

    def named(self, name: str) -> Dialect | None:
        """Return this dialect or the variant that reads files of architecture `name`."""
        return next((d for d in (self, *self.variants) if d.architecture == name), None)

    def of(self, config: Mapping[str, Any]) -> Dialect:
        """Return the one that writes a model of this `config.json`."""
        matches = (d for d in self.variants if d.writes is not None and d.writes(config))
        return next(matches, self)

    def over(self, defaults: Self) -> Self:
        """Return this dialect, completed with a format's defaults."""
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
