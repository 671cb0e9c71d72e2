"""A view of checkpoints in which the routers' biases have their usual names. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Checkpoint, RenamedView, with_head

_PUBLISHED = ".block_sparse_moe.e_score_correction_bias"
_USUAL = ".block_sparse_moe.gate.e_score_correction_bias"


def usual_names(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the model's names, with those of `with_head`."""
    whole = with_head(checkpoint)
    return RenamedView(whole, {name.replace(_PUBLISHED, _USUAL): name for name in whole.tensors})
