"""A view of checkpoints in which the norms of heads have their usual names. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Checkpoint, RenamedView, with_head


def usual_names(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the model's names, with those of `with_head`."""
    whole = with_head(checkpoint)
    return RenamedView(whole, {_usual(name): name for name in whole.tensors})


def _usual(name: str) -> str:
    return name.replace(".query_layernorm.", ".q_norm.").replace(".key_layernorm.", ".k_norm.")
