"""ChatGLM2, ChatGLM3 and GLM-4 as they were published first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from inferno.errors import UnsupportedError
from inferno.testing import TINY_TEXT, SpellingTests, joined, renamed
from inferno_glm4.spellings import CHATGLM

GLM: dict[str, Any] = {
    **TINY_TEXT,
    "architectures": ["GlmForCausalLM"],
    "model_type": "glm",
    "attention_bias": True,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


class TestChatGLM3(SpellingTests):
    """ChatGLM3-6B: two key/value heads, biases on queries, keys and values."""

    twin = GLM
    config: ClassVar[Mapping[str, Any]] = {
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "padded_vocab_size": 160,
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "num_layers": 2,
        "num_attention_heads": 4,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "kv_channels": 16,
        "layernorm_epsilon": 1e-5,
        "seq_length": 256,
        "add_qkv_bias": True,
        "add_bias_linear": False,
        "rmsnorm": True,
        "post_layer_norm": True,
        "original_rope": True,
        "apply_residual_connection_post_layernorm": False,
        "apply_query_key_layer_scaling": True,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {
            "model.embed_tokens": "transformer.embedding.word_embeddings",
            "model.layers": "transformer.encoder.layers",
            "self_attn.o_proj": "self_attention.dense",
            "self_attn": "self_attention",
            "mlp.gate_up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
            "model.norm": "transformer.encoder.final_layernorm",
            "lm_head": "transformer.output_layer",
        }
        fused = joined(tensors, ("q_proj", "k_proj", "v_proj"), "query_key_value")
        tables = {"transformer.rotary_pos_emb.inv_freq": torch.ones(4)}
        return {**renamed(fused, names), **tables}


class TestGLM4(TestChatGLM3):
    """GLM-4-9B-Chat by its other class: the base of its positions is 500 times the usual one."""

    twin = {**GLM, "rope_theta": 5_000_000.0}
    config = {
        **TestChatGLM3.config,
        "architectures": ["ChatGLMForConditionalGeneration"],
        "rope_ratio": 500,
    }


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"multi_query_attention": None}, "both directions"),
        ({"vision_config": {}}, "image encoder"),
        ({"rmsnorm": False}, "rmsnorm"),
        ({"rope_ratio": 16, "padded_vocab_size": 65_024}, "told apart"),
    ],
)
def test_what_it_does_not_compute_is_refused(fields: Mapping[str, Any], why: str) -> None:
    given = {**TestChatGLM3.config, **fields}
    with pytest.raises(UnsupportedError, match=why):
        CHATGLM.read({name: value for name, value in given.items() if value is not None})
