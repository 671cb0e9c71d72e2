"""What GGUF files call a model's tensors and fields: part of an architecture's declaration
(`contracts.Architecture.gguf`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen


@frozen(kw_only=True)
class GgufNames:
    """How a GGUF file names an architecture: with it, the file reads as if it were the original
    checkpoint.

    GGUF names are those of llama.cpp's converters (gguf-py's `constants.py`); `{n}` in a path
    stands for a layer's number. Where two architectures read files of one name, that of the higher
    `priority` does.
    """

    architecture: str
    """`general.architecture`, and the prefix of its metadata keys."""
    fields: Mapping[str, str]
    """Field of `config.json` -> metadata key without the prefix: {"hidden_size":
    "embedding_length"}. What a file does not store is left out of the config. The rotary base and
    scaling, the vocabulary's size, the dtype and whether the head is tied are every model's and
    need no entry."""
    modules: Mapping[str, str]
    """Module path in the file -> in the checkpoint: {"blk.{n}.attn_q":
    "model.layers.{n}.self_attn.q_proj"}. `{e}` in the latter stands for each matrix of a stack:
    {"blk.{n}.ffn_up_exps": "model.layers.{n}.mlp.experts.{e}.up_proj"}. A tensor whose last
    component differs too is named whole: {"blk.{n}.attn_sinks.weight":
    "model.layers.{n}.self_attn.sinks"}."""
    rotary_pairs: Mapping[str, str] = field(factory=dict)
    """Modules (by their path in the file) whose rows are stored rotary pair by pair, (i, i + C/2)
    side by side, and the metadata key of their number of heads: {"blk.{n}.attn_q":
    "attention.head_count"}."""
    constants: Mapping[str, Any] = field(factory=dict)
    """Fields of `config.json` that are the same for every file of this architecture."""
    present: Mapping[str, str] = field(factory=dict)
    """Fields of `config.json` that say whether a file stores a tensor: {"qkv_bias":
    "blk.0.attn_q.bias"}."""
    values: Mapping[str, Mapping[Any, Any]] = field(factory=dict)
    """Fields whose values the file spells otherwise: {"scoring_func": {1: "softmax", 2:
    "sigmoid"}}."""
    added: Mapping[str, float] = field(factory=dict)
    """Modules (by their path in the file) whose weight is stored with this number added to it:
    {"output_norm": 1.0}."""
    single_rows: tuple[str, ...] = ()
    """Modules (by their path in the file) whose matrix has one row, which files store as a
    vector."""
    priority: int = 0
