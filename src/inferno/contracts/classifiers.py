"""Sequence classifiers: a family's decoder, with a head of one row for each label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import evolve, frozen

from inferno.contracts import lazy
from inferno.contracts.architectures import Architecture
from inferno.contracts.checkpoints import Checkpoint, CheckpointView, TensorInfo
from inferno.errors import CheckpointError

_CAUSAL, _CLASSIFIER = "ForCausalLM", "ForSequenceClassification"
_HEAD = "score.weight"


@frozen(eq=False)
class Classifier(CheckpointView):
    """A classifier's checkpoint for the code of its family: the head's size is in its config, and
    logits, which nothing reads, come from the embedding."""

    @property
    def config(self) -> Mapping[str, Any]:
        num_labels, _ = self.checkpoint.tensors[_HEAD].shape
        return {**self.checkpoint.config, "tie_word_embeddings": True, "num_labels": num_labels}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.checkpoint.tensors

    def read(self, name: str) -> Any:
        return self.checkpoint.read(name)


def classifier_of(architecture: Architecture) -> Architecture:
    """Return the declaration of a family's sequence classifiers, `XForSequenceClassification`, from
    that of its `XForCausalLM`. Its config is a `configs.DecoderConfig`."""
    assert architecture.name.endswith(_CAUSAL), "of a causal model"
    return evolve(
        architecture,
        name=architecture.name.removesuffix(_CAUSAL) + _CLASSIFIER,
        build=partial(lazy.function("inferno.nn.decoder:with_score"), architecture.build),
        adapt=partial(_adapted, architecture.adapt),
        mtp=None,
        dialects={},
        reranker=None,
        checkpoints=(),
        aliases=(),
        model_types=(),
    )


def _adapted(
    adapt: Callable[[Checkpoint], Checkpoint] | None, checkpoint: Checkpoint
) -> Checkpoint:
    view = checkpoint if adapt is None else adapt(checkpoint)
    if len(view.tensors[_HEAD].shape if _HEAD in view.tensors else ()) != 2:
        raise CheckpointError(
            f"the checkpoint stores no head for labels: {_HEAD}",
            "Its config.json names a classifier; check that it belongs to these weights.",
        )
    return Classifier(view)
