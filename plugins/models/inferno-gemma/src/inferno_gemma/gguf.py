"""The GGUF dialects of Gemma. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import attrs

from inferno.configs import FULL, SLIDING, typed_layers
from inferno.contracts import Dialect, RowSplit

_LAYER = "model.layers.{n}"

# llama.cpp multiplies by the stored weight: its converters add the 1 of every norm.
_NORMS = ("output_norm", "blk.{n}.attn_norm", "blk.{n}.ffn_norm")
_NORMS_2 = (*_NORMS, "blk.{n}.post_attention_norm", "blk.{n}.post_ffw_norm")
_NORMS_3 = (*_NORMS_2, "blk.{n}.attn_q_norm", "blk.{n}.attn_k_norm")

_MODULES_2 = {
    "blk.{n}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
    "blk.{n}.ffn_norm": f"{_LAYER}.pre_feedforward_layernorm",
    "blk.{n}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
}


def _gemma2(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Set `query_pre_attn_scalar`, which files lack. As in llama.cpp: the head width, except in the
    27B models, known by their number of layers."""
    is_27b = fields["num_hidden_layers"] in (46, 62)
    width = fields["hidden_size"] // fields["num_attention_heads"]
    return {**fields, "query_pre_attn_scalar": width if is_27b else fields["head_dim"]}


def _gemma3(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files without a window have full attention in every layer (rnj-1)."""
    config = _gemma2(fields)
    if "sliding_window" not in config:
        config |= {"sliding_window": None, "sliding_window_pattern": 1}
    return config


GEMMA = Dialect(
    architecture="gemma",
    constants={"model_type": "gemma"},
    added=dict.fromkeys(_NORMS, 1.0),
)
GEMMA2 = Dialect(
    architecture="gemma2",
    constants={"model_type": "gemma2"},
    fields={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "sliding_window": "attention.sliding_window",
    },
    modules=_MODULES_2,
    added=dict.fromkeys(_NORMS_2, 1.0),
    config=_gemma2,
)
_GEMMA3 = Dialect(
    architecture="gemma3",
    constants={"model_type": "gemma3_text"},
    fields={
        "final_logit_softcapping": "final_logit_softcapping",
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        "rope_local_base_freq": "rope.freq_base_swa",
    },
    modules=_MODULES_2,
    added=dict.fromkeys(_NORMS_3, 1.0),
    config=_gemma3,
)
"""What decoders and encoders share."""


def _is_encoder(config: Mapping[str, Any]) -> bool:
    return bool(config.get("use_bidirectional_attention"))


EMBEDDING = attrs.evolve(
    _GEMMA3,
    architecture="gemma-embedding",
    constants={**_GEMMA3.constants, "use_bidirectional_attention": True},
    writes=_is_encoder,
)
GEMMA3 = attrs.evolve(_GEMMA3, variants=(EMBEDDING,))

_NEVER = 1e29
"""Pairs whose divisor is larger do not turn."""

INPUTS: Mapping[str, str] = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "blk.{n}.inp_gate": f"{_LAYER}.per_layer_input_gate",
    "blk.{n}.proj": f"{_LAYER}.per_layer_projection",
    "blk.{n}.post_norm": f"{_LAYER}.post_per_layer_input_norm",
    **_MODULES_2,
}
"""Modules of Gemma 3n and 4."""


def kinds(fields: Mapping[str, Any]) -> list[str]:
    """Return the type of each layer. Files say which have a window."""
    return typed_layers(fields["sliding_window_pattern"], fields["num_hidden_layers"])


def _gemma4(fields: Mapping[str, Any]) -> dict[str, Any]:
    files_only = (
        "sliding_window_pattern",
        "stores_values",
        "rope_theta",
        "rope_scaling",
        "partial_rotary_factor",
        "rope_local_base_freq",
        "rope_width",
        "local_rope_width",
        "kv_heads",
        "inner_sizes",
    )
    config = {name: value for name, value in fields.items() if name not in files_only}
    types = config["layer_types"] = kinds(fields)
    config["attention_k_eq_v"] = not fields["stores_values"][types.index(FULL)]
    heads, inner = fields.get("kv_heads", fields["num_attention_heads"]), fields["inner_sizes"]
    config["num_key_value_heads"] = heads
    if isinstance(heads, list):
        config["num_key_value_heads"] = heads[types.index(SLIDING)]
        config["num_global_key_value_heads"] = heads[types.index(FULL)]
    config["intermediate_size"] = inner[0] if isinstance(inner, list) else inner
    config["use_double_wide_mlp"] = isinstance(inner, list)
    config["vocab_size_per_layer_input"] = fields["vocab_size"]
    config["enable_moe_block"] = bool(fields.get("num_experts"))
    divisors = (fields.get("rope_scaling") or {}).get("short_factor") or [1.0]
    turned = sum(divisor < _NEVER for divisor in divisors)
    config["rope_parameters"] = {
        FULL: {
            "rope_type": "proportional",
            "rope_theta": fields["rope_theta"],
            "partial_rotary_factor": turned / len(divisors),
            "factor": divisors[0],
        },
        SLIDING: {"rope_type": "default", "rope_theta": fields.get("rope_local_base_freq", 1e4)},
    }
    return config


GEMMA4 = Dialect(
    architecture="gemma4",
    constants={"model_type": "gemma4_text"},
    fields={
        "final_logit_softcapping": "final_logit_softcapping",
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        "rope_local_base_freq": "rope.freq_base_swa",
        "rope_width": "rope.dimension_count",
        "local_rope_width": "rope.dimension_count_swa",
        "num_key_value_heads": None,
        "kv_heads": "attention.head_count_kv",
        "intermediate_size": None,
        "inner_sizes": "feed_forward_length",
        "head_dim": "attention.key_length_swa",
        "global_head_dim": "attention.key_length",
        "num_kv_shared_layers": "attention.shared_kv_layers",
        "hidden_size_per_layer_input": "embedding_length_per_layer_input",
        "num_experts_per_tok": None,
        "top_k_experts": "expert_used_count",
    },
    modules={
        **INPUTS,
        "blk.{n}.layer_output_scale.weight": f"{_LAYER}.layer_scalar",
        "blk.{n}.ffn_gate_inp": f"{_LAYER}.router.proj",
        "blk.{n}.ffn_gate_inp.scale": f"{_LAYER}.router.scale",
        "blk.{n}.ffn_down_exps.scale": f"{_LAYER}.router.per_expert_scale",
        "blk.{n}.ffn_gate_exps": None,
        "blk.{n}.ffn_up_exps": None,
        "blk.{n}.ffn_down_exps": f"{_LAYER}.experts.{{e}}.down_proj",
        "blk.{n}.pre_ffw_norm_2": f"{_LAYER}.pre_feedforward_layernorm_2",
        "blk.{n}.post_ffw_norm_1": f"{_LAYER}.post_feedforward_layernorm_1",
        "blk.{n}.post_ffw_norm_2": f"{_LAYER}.post_feedforward_layernorm_2",
    },
    rows={
        "blk.{n}.ffn_gate_up_exps": RowSplit(
            {
                f"{_LAYER}.experts.{{e}}.gate_proj": 1,
                f"{_LAYER}.experts.{{e}}.up_proj": 1,
            }
        )
    },
    layers_with={"stores_values": "blk.{n}.attn_v.weight"},
    config=_gemma4,
)


def _gemma3n(fields: Mapping[str, Any]) -> dict[str, Any]:
    files_only = ("sliding_window_pattern", "activation_sparsity_scale", "inner_sizes")
    config = {name: value for name, value in fields.items() if name not in files_only}
    layers = fields["num_hidden_layers"]
    config["layer_types"] = kinds(fields)
    config["intermediate_size"] = fields["inner_sizes"]
    config["vocab_size_per_layer_input"] = fields["vocab_size"]
    scales = fields["activation_sparsity_scale"]
    scales = scales if isinstance(scales, list) else [scales] * layers
    config["activation_sparsity_pattern"] = [round(NormalDist().cdf(s), 6) for s in scales]
    return config


GEMMA3N = Dialect(
    architecture="gemma3n",
    # Readers of these files know this rank alone.
    constants={"model_type": "gemma3n_text", "laurel_rank": 64},
    fields={
        "final_logit_softcapping": "final_logit_softcapping",
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        "rope_local_base_freq": "rope.freq_base_swa",
        "num_kv_shared_layers": "attention.shared_kv_layers",
        "hidden_size_per_layer_input": "embedding_length_per_layer_input",
        "altup_num_inputs": "altup.num_inputs",
        "altup_active_idx": "altup.active_idx",
        "activation_sparsity_scale": "activation_sparsity_scale",
        "intermediate_size": None,
        "inner_sizes": "feed_forward_length",
    },
    modules={
        **INPUTS,
        "altup_proj": "model.altup_projections.{e}",
        "altup_unembd_proj": "model.altup_unembed_projections.{e}",
        "blk.{n}.altup_correct_coef": f"{_LAYER}.altup.correction_coefs",
        "blk.{n}.altup_correct_scale.weight": f"{_LAYER}.altup.correct_output_scale",
        "blk.{n}.altup_predict_coef": f"{_LAYER}.altup.prediction_coefs",
        "blk.{n}.altup_router": f"{_LAYER}.altup.modality_router",
        "blk.{n}.altup_router_norm": f"{_LAYER}.altup.router_norm",
        "blk.{n}.laurel_l": f"{_LAYER}.laurel.linear_left",
        "blk.{n}.laurel_r": f"{_LAYER}.laurel.linear_right",
        "blk.{n}.laurel_post_norm": f"{_LAYER}.laurel.post_laurel_norm",
    },
    config=_gemma3n,
)
