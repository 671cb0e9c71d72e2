"""A view of checkpoints in which norms and the routers' biases have their usual names. Imports no
torch."""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RenamedView, with_head

_USUAL = {
    r"\.q_layernorm\.": ".q_norm.",
    r"\.k_layernorm\.": ".k_norm.",
    r"\.operator_norm\.": ".input_layernorm.",
    r"\.ffn_norm\.": ".post_attention_layernorm.",
    r"\.feed_forward\.expert_bias$": ".feed_forward.gate.e_score_correction_bias",
    r"^model\.embedding_norm\.": "model.norm.",
}


def usual_names(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the model's names, with those of `with_head`."""
    whole = with_head(checkpoint)
    return RenamedView(whole, {_usual(name): name for name in whole.tensors})


def _usual(name: str) -> str:
    for pattern, usual in _USUAL.items():
        name = re.sub(pattern, usual, name)
    return name
