"""Classes that transformers has under another name."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from inferno.testing import SpellingTests

SMALL: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "alibi": False,
    "bias": False,
    "layer_norm_epsilon": 1e-5,
    "bos_token_id": 11,
    "eos_token_id": 11,
}
OLD: dict[str, Any] = {
    **SMALL,
    "architectures": ["RWForCausalLM"],
    "apply_residual_connection_post_layernorm": False,
    "n_layer": 2,
    "n_head": 4,
    "hidden_dropout": 0.0,
}
NEW: dict[str, Any] = {
    **SMALL,
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


class _FalconTests(SpellingTests):
    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors


class TestFalcon7B(_FalconTests):
    """Falcon-7B-Instruct as published first: one key/value head, one norm in a layer."""

    config = {**OLD, "model_type": "RefinedWebModel", "multi_query": True, "parallel_attn": True}
    twin = {**NEW, "multi_query": True, "new_decoder_architecture": False}


class TestFalcon40B(_FalconTests):
    """Falcon-40B-Instruct as published first: groups of heads, two norms in a layer."""

    config = {**OLD, "model_type": "RefinedWeb", "n_head_kv": 2}
    twin = {**NEW, "num_kv_heads": 2, "new_decoder_architecture": True}
