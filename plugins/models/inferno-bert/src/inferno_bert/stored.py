"""Checkpoints of the BERT family under one set of names. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from inferno.contracts import Checkpoint, CheckpointView, TensorInfo
from inferno.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_PREFIXES = ("bert.", "roberta.", "model.", "new.")
"""What classes with a head write before the encoder's names."""
_ENDS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names that the first checkpoints, converted from TensorFlow, still have."""
_HEADS = (
    ("pooler.dense.", "score.dense."),
    ("head.dense.", "score.dense."),
    ("head.norm.", "score.norm."),
    ("classifier.dense.", "score.dense."),
    ("classifier.out_proj.", "score.out_proj."),
    ("classifier.", "score.out_proj."),
)
"""A classifier's head, by its names in different classes."""
HEAD = "score.out_proj.weight"


@frozen(eq=False)
class Encoder(CheckpointView):
    """An encoder without its prefix, and with `classifies` its head under `score`."""

    classifies: bool = False
    names: Mapping[str, str] = field(init=False)
    """Name in the model -> stored name."""

    @names.default
    def _find(self) -> dict[str, str]:
        return {self._renamed(name): name for name in self.checkpoint.tensors}

    def _renamed(self, name: str) -> str:
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        for old, new in _ENDS.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        for old, new in _HEADS if self.classifies else ():
            if name.startswith(old):
                return new + name.removeprefix(old)
        return name

    @property
    def config(self) -> Mapping[str, Any]:
        config = self.checkpoint.config
        if not self.classifies:
            return config
        return {**config, "num_labels": self.tensors[HEAD].shape[0]}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        stored = self.checkpoint.tensors
        return {name: stored[theirs] for name, theirs in self.names.items()}

    def read(self, name: str) -> Tensor:
        return self.checkpoint.read(self.names[name])


def encoder(checkpoint: Checkpoint) -> Checkpoint:
    """View a model without a head, or with one that predicts masked tokens and is not read."""
    return Encoder(checkpoint)


def classifier(checkpoint: Checkpoint) -> Checkpoint:
    """View a model with a head for labels. Raises CheckpointError if it stores none."""
    found = Encoder(checkpoint, classifies=True)
    if len(found.tensors[HEAD].shape if HEAD in found.tensors else ()) != 2:
        raise CheckpointError(
            "the checkpoint stores no head for labels: classifier.weight or "
            "classifier.out_proj.weight",
            "Its config.json names a classifier; check that it belongs to these weights.",
        )
    return found
