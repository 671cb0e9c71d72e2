"""Checkpoints of the BERT family under one set of names. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from inferno.contracts import Checkpoint, RenamedView
from inferno.errors import CheckpointError

_PREFIXES = ("bert.", "roberta.", "model.", "nomic_bert.", "gte.", "new.")
"""What classes with a head write before the encoder's names."""
_ENDS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names that the first checkpoints, converted from TensorFlow, still have."""
_GATED = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"^emb_ln\.", "embeddings.LayerNorm."),
        (r"^encoder\.layers?\.", "layers."),
        (r"\.(attn|attention)\.(Wqkv|qkv_proj)\.", ".self_attn.qkv_proj."),
        (r"\.attention\.([qkv]_proj)\.", r".self_attn.\1."),
        (r"\.(attn|attention)\.(out_proj|o_proj)\.", ".self_attn.o_proj."),
        (r"\.mlp\.fc11\.", ".mlp.up_proj."),
        (r"\.mlp\.fc12\.", ".mlp.gate_proj."),
        (r"\.mlp\.fc2\.", ".mlp.down_proj."),
        (r"\.(norm1|attn_ln)\.", ".post_attention_layernorm."),
        (r"\.(norm2|mlp_ln)\.", ".post_mlp_layernorm."),
    )
)
"""Names of NomicBERT's and GTE's own code, and transformers' for the same."""
_HEADS = (
    ("pooler.dense.", "score.dense."),
    ("head.dense.", "score.dense."),
    ("head.norm.", "score.norm."),
    ("classifier.dense.", "score.dense."),
    ("classifier.out_proj.", "score.out_proj."),
    ("classifier.", "score.out_proj."),
)
"""A classifier's head, by its names in different classes."""
HEAD = "score.out_proj."
POOLER = "score.dense."
TYPES = "embeddings.token_type_embeddings."


@frozen(eq=False)
class Encoder(RenamedView):
    """An encoder without its prefix, and with `classifies` its head under `score`."""

    classifies: bool = False
    gated: bool = False
    names: Mapping[str, str] = field(init=False)

    @names.default
    def _find(self) -> dict[str, str]:
        return {self._renamed(name): name for name in self.checkpoint.tensors}

    def _renamed(self, name: str) -> str:
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        for old, new in _ENDS.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        for pattern, new in _GATED if self.gated else ():
            name = pattern.sub(new, name)
        for old, new in _HEADS if self.classifies else ():
            if name.startswith(old):
                return new + name.removeprefix(old)
        return name

    @property
    def config(self) -> Mapping[str, Any]:
        fields = {**self.checkpoint.config}
        if types := self.rows_of(TYPES):
            fields.setdefault("type_vocab_size", types)  # not every format says it
        if self.gated:
            fields["fused_qkv"] = any(".qkv_proj." in name for name in self.names)
            fields["fused_mlp"] = any(".up_gate_proj." in name for name in self.names)
        if self.classifies:
            fields["num_labels"] = self.rows_of(HEAD)
        return fields

    def rows_of(self, module: str) -> int:
        """Return the rows of a module's matrix, dense or packed; 0 if it is not stored."""
        stored = self.checkpoint.tensors
        shapes = [stored[old].shape for new, old in self.names.items() if new.startswith(module)]
        return next((shape[0] for shape in shapes if len(shape) == 2), 0)


def encoder(checkpoint: Checkpoint) -> Checkpoint:
    """View a model without a head, or with one that predicts masked tokens and is not read."""
    return Encoder(checkpoint)


def gated_encoder(checkpoint: Checkpoint) -> Checkpoint:
    """The same of NomicBERT and GTE."""
    return Encoder(checkpoint, gated=True)


def gated_classifier(checkpoint: Checkpoint) -> Checkpoint:
    """View a NomicBERT or GTE with a head for labels. Raises CheckpointError."""
    return classifier(checkpoint, gated=True)


def classifier(checkpoint: Checkpoint, *, gated: bool = False) -> Checkpoint:
    """View a model with a head for labels. Raises CheckpointError if it stores none."""
    view = Encoder(checkpoint, classifies=True, gated=gated)
    if not view.rows_of(HEAD):
        raise CheckpointError(
            "the checkpoint stores no head for labels: classifier.weight or "
            "classifier.out_proj.weight",
            "Its config.json names a classifier; check that it belongs to these weights.",
        )
    if not view.rows_of(POOLER):
        raise CheckpointError(
            "the checkpoint stores no layer before the head for labels, which was trained to read "
            "it: llama.cpp's converter leaves it out",
            "Serve the original, or its file of `inferno convert`.",
        )
    return view
