"""Models that StableLM's code computes under other classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inferno.contracts import Spelling
from inferno.errors import UnsupportedError
from inferno.testing import TINY_TEXT, SpellingTests
from inferno_stablelm.spellings import EPOCH, ORION

SMALL: dict[str, Any] = {
    **{name: value for name, value in TINY_TEXT.items() if name != "head_dim"},
    "tie_word_embeddings": False,
}
STABLELM: dict[str, Any] = {
    **SMALL,
    "architectures": ["StableLmForCausalLM"],
    "model_type": "stablelm",
    "layer_norm_eps": 1e-4,
}


class _WithTablesTests(SpellingTests):
    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}


class TestStableLMEpoch(_WithTablesTests):
    """stablelm-3b-4e1t as published first."""

    twin = {**STABLELM, "partial_rotary_factor": 0.5, "use_qkv_bias": True}
    config = {
        **SMALL,
        "architectures": ["StableLMEpochForCausalLM"],
        "model_type": "stablelm_epoch",
        "num_heads": 4,
        "norm_eps": 1e-4,
        "rope_pct": 0.5,
        "rotary_scaling_factor": 1.0,
        "use_qkv_bias": True,
    }


class TestOrion(_WithTablesTests):
    """Orion-14B-Chat: whole heads rotated; LayerNorms by a field that says RMSNorm."""

    twin = {**STABLELM, "partial_rotary_factor": 1.0}
    config = {
        **SMALL,
        "architectures": ["OrionForCausalLM"],
        "model_type": "orion",
        "rms_norm_eps": 1e-4,
    }


@pytest.mark.parametrize(
    ("spelling", "fields"),
    [(EPOCH, {"rotary_scaling_factor": 2.0}), (ORION, {"attention_bias": True})],
)
def test_what_it_does_not_compute_is_refused(spelling: Spelling, fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="cannot run here"):
        spelling.read({**SMALL, **fields})
