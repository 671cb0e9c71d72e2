"""A view of checkpoints in which norms of heads, routers and shared experts have their usual names.
Imports no torch."""

from __future__ import annotations

from inferno.contracts import Checkpoint, RenamedView, with_head

_NAMES = {
    ".query_layernorm.": ".q_norm.",
    ".key_layernorm.": ".k_norm.",
    ".mlp.gate.wg.": ".mlp.gate.",
    ".mlp.shared_mlp.": ".mlp.shared_experts.",
}


def usual_names(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the model's names, with those of `with_head`."""
    whole = with_head(checkpoint)
    return RenamedView(whole, {_usual(name): name for name in whole.tensors})


def _usual(name: str) -> str:
    for published, usual in _NAMES.items():
        name = name.replace(published, usual)
    return name
