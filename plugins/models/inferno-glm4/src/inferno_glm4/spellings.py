"""ChatGLM2, ChatGLM3 and GLM-4 as they were published first, and the text part of GLM-OCR. Imports
no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Fused, Spelling
from inferno.errors import UnsupportedError

_LAYER, _STORED = "model.layers.{n}", "transformer.encoder.layers.{n}"
_ATTENTION = f"{_LAYER}.self_attn"
_OLD_VOCABULARY = 65_024
"""Of ChatGLM2 and ChatGLM3; GLM-4 has 151 552 tokens."""


def _chatglm(fields: Mapping[str, Any]) -> dict[str, Any]:
    if "multi_query_attention" not in fields:
        raise UnsupportedError(
            "ChatGLM-6B, the first ChatGLMModel, cannot run here: it attends in both directions to "
            "what comes before its answer",
            "ChatGLM2, ChatGLM3 and GLM-4 run.",
        )
    if "vision_config" in fields:
        raise UnsupportedError(
            "GLM-4V, a ChatGLMModel with an image encoder, cannot run here", "GLM-4.5V runs."
        )
    ratio = fields.get("rope_ratio", 1)
    if ratio != 1 and fields.get("vocab_size") == _OLD_VOCABULARY:
        raise UnsupportedError(
            f"rope_ratio {ratio} cannot be told apart here: ChatGLM2-6B-32K divides positions by "
            "it, ChatGLM3-6B-32K multiplies their base",
            "The models without it run, and GLM-4, whose contexts are longer.",
        )
    grouped = fields.get("multi_query_attention")
    heads = fields.get("multi_query_group_num" if grouped else "num_attention_heads")
    return {
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        **fields,
        "num_key_value_heads": heads,
        "rope_theta": 10_000.0 * ratio,
        "partial_rotary_factor": 0.5,
    }


CHATGLM = Spelling(
    name="ChatGLMModel",
    aliases=("ChatGLMForConditionalGeneration", "ChatGLMForCausalLM"),
    model_types=("chatglm",),
    fields={
        "num_layers": "num_hidden_layers",
        "ffn_hidden_size": "intermediate_size",
        "kv_channels": "head_dim",
        "layernorm_epsilon": "rms_norm_eps",
        "padded_vocab_size": "vocab_size",
        "seq_length": "max_position_embeddings",
        "add_qkv_bias": "attention_bias",
    },
    fixed={
        "rmsnorm": True,
        "post_layer_norm": True,
        "apply_residual_connection_post_layernorm": False,
        "add_bias_linear": False,
    },
    config=_chatglm,
    modules={
        "transformer.embedding.word_embeddings": "model.embed_tokens",
        **{
            f"{_STORED}.{norm}": f"{_LAYER}.{norm}"
            for norm in ("input_layernorm", "post_attention_layernorm")
        },
        f"{_STORED}.self_attention.dense": f"{_ATTENTION}.o_proj",
        f"{_STORED}.mlp.dense_h_to_4h": f"{_LAYER}.mlp.gate_up_proj",
        f"{_STORED}.mlp.dense_4h_to_h": f"{_LAYER}.mlp.down_proj",
        "transformer.encoder.final_layernorm": "model.norm",
        "transformer.output_layer": "lm_head",
    },
    fused={
        f"{_STORED}.self_attention.query_key_value": Fused(
            {
                f"{_ATTENTION}.q_proj": "num_attention_heads",
                f"{_ATTENTION}.k_proj": "num_key_value_heads",
                f"{_ATTENTION}.v_proj": "num_key_value_heads",
            }
        )
    },
    unused=(r".*\.inv_freq",),
    checkpoints=(
        "THUDM/chatglm2-6b",
        "THUDM/chatglm3-6b",
        "THUDM/glm-4-9b",
        "THUDM/glm-4-9b-chat",
        "THUDM/glm-4-9b-chat-1m",
        "THUDM/LongWriter-glm4-9b",
    ),
)

OCR = Spelling(
    name="GlmOcrTextModel",
    model_types=("glm_ocr_text",),
    config=lambda fields: {**fields, "attention_bias": False},
    unused=(r"model\.layers\.\d+\.(eh_proj|enorm|hnorm|embed_tokens|shared_head)\..*",),
    checkpoints=("zai-org/GLM-OCR",),
)
"""The text part of GLM-OCR, which has no biases."""
