"""The GGUF dialects of DeepSeekMoE, Ling, DeepSeek-V2, V3, V3.2, GLM-4.7-Flash and GLM-5. Imports
no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.contracts import Dialect, RowJoin
from inferno.errors import CheckpointError

_ATTENTION = "model.layers.{n}.self_attn"
_MLP = "model.layers.{n}.mlp"
_LAYER = "model.layers.{n}"
_NEXTN = "num_nextn_predict_layers"


def _deepseek(fields: Mapping[str, Any]) -> dict[str, Any]:
    config = {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, **fields}
    # The layer count includes multi-token-prediction layers, where they are stored.
    if (drafts := config.pop("drafts", None)) is not None:
        config[_NEXTN] = sum(drafts)
        config["num_hidden_layers"] -= config[_NEXTN]
    if temperature := config.pop("temperature_scale", 0.0):
        raise CheckpointError(
            f"attention.temperature_scale is {temperature}: queries are scaled by their position",
            "Use another model: DeepSeek's, which this plugin computes, do not scale them.",
        )
    # If kv_b_proj is stored head by head, `_mla` fields have the head widths, and the others those
    # of the cached vectors: a `partial_rotary_factor` derived from them is wrong.
    key, value = config.pop("key_length"), config.pop("value_length")
    key, value = config.pop("key_length_mla", key), config.pop("value_length_mla", value)
    config |= {"qk_nope_head_dim": key - config["qk_rope_head_dim"], "v_head_dim": value}
    config |= {"num_key_value_heads": config["num_attention_heads"], "partial_rotary_factor": 1.0}
    # Converters write 0 for none.
    config["routed_scaling_factor"] = config.get("routed_scaling_factor") or 1.0
    multiplier = config.pop("yarn_log_multiplier", None)  # a tenth of both
    if multiplier is not None and (scaling := config.get("rope_scaling")):
        both = dict.fromkeys(("mscale", "mscale_all_dim"), 10 * multiplier)
        config["rope_scaling"] = {**scaling, **both}
    corrected = config.pop("corrected", False)
    is_glm = _is_glm_flash(config, key == value) if "scoring_func" in config else corrected
    # The first V2 files do not name the scoring, and those of GLM-4.7-Flash from its own config.
    if config.setdefault("scoring_func", "sigmoid" if corrected else "softmax") == "softmax":
        method = "greedy" if config["n_group"] == 1 else "group_limited_greedy"
        return {**config, "topk_method": method, "model_type": "deepseek_v2"}
    named = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    if is_glm:
        named = {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite"}
    return {**config, "topk_method": "noaux_tc", **named}


def _is_glm_flash(config: Mapping[str, Any], even: bool) -> bool:
    """Whether a file that names its scoring is GLM-4.7-Flash's: no other model under the name
    `deepseek2` that scores by sigmoids has all of this. `even`: values are as wide as keys."""
    of_v3 = config["scoring_func"] == "sigmoid" and bool(config.get("q_lora_rank"))
    return of_v3 and even and config["n_group"] == 1 and not config.get("rope_scaling")


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The head widths, as files with one matrix `attn_kv_b` have them."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    multiplier = scaling.get("mscale_all_dim")
    return {
        "key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "value_length": config["v_head_dim"],
        **({"yarn_log_multiplier": multiplier / 10} if multiplier else {}),
    }


def _sigmoid_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """With the scoring, which a `config.json` need not name, and readers take for softmax."""
    return {**_fields(config), "scoring_func": "sigmoid"}


def _fields_with_drafts(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"] + (config.get(_NEXTN) or 0)
    return {**_sigmoid_fields(config), "num_hidden_layers": layers}


_DRAFTS = {
    "blk.{n}.nextn.eh_proj": f"{_LAYER}.eh_proj",
    "blk.{n}.nextn.embed_tokens": f"{_LAYER}.embed_tokens",
    "blk.{n}.nextn.enorm": f"{_LAYER}.enorm",
    "blk.{n}.nextn.hnorm": f"{_LAYER}.hnorm",
    "blk.{n}.nextn.shared_head_head": f"{_LAYER}.shared_head.head",
    "blk.{n}.nextn.shared_head_norm": f"{_LAYER}.shared_head.norm",
}
"""What a multi-token-prediction layer has beside a decoder layer."""

DEEPSEEK = Dialect(
    architecture="deepseek2",
    fields={
        "head_dim": None,
        "num_key_value_heads": None,
        "num_experts": None,
        "q_lora_rank": "attention.q_lora_rank",
        "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "key_length": "attention.key_length",
        "value_length": "attention.value_length",
        "key_length_mla": "attention.key_length_mla",
        "value_length_mla": "attention.value_length_mla",
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "scoring_func": "expert_gating_func",
        "norm_topk_prob": "expert_weights_norm",
        "routed_scaling_factor": "expert_weights_scale",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "yarn_log_multiplier": "rope.scaling.yarn_log_multiplier",
        "temperature_scale": "attention.temperature_scale",
    },
    values={"scoring_func": {1: "softmax", 2: "sigmoid"}},
    modules={
        "blk.{n}.attn_k": None,
        "blk.{n}.attn_v": None,
        "blk.{n}.attn_q_a": f"{_ATTENTION}.q_a_proj",
        "blk.{n}.attn_q_a_norm": f"{_ATTENTION}.q_a_layernorm",
        "blk.{n}.attn_q_b": f"{_ATTENTION}.q_b_proj",
        "blk.{n}.attn_kv_a_mqa": f"{_ATTENTION}.kv_a_proj_with_mqa",
        "blk.{n}.attn_kv_a_norm": f"{_ATTENTION}.kv_a_layernorm",
        "blk.{n}.attn_kv_b": f"{_ATTENTION}.kv_b_proj",
        "blk.{n}.exp_probs_b.bias": f"{_MLP}.gate.e_score_correction_bias",
        "blk.{n}.ffn_gate_shexp": f"{_MLP}.shared_experts.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_MLP}.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MLP}.shared_experts.down_proj",
        **_DRAFTS,
    },
    # llama.cpp since April 2025; older files store `attn_kv_b`.
    joins={
        f"{_ATTENTION}.kv_b_proj": RowJoin(
            ("blk.{n}.attn_k_b", "blk.{n}.attn_v_b"), transposed=("blk.{n}.attn_k_b",)
        )
    },
    layers_with={"drafts": "blk.{n}.nextn.eh_proj.weight"},
    present={"corrected": "blk.{n}.exp_probs_b.bias"},
    config=_deepseek,
    inverse=_fields,
)
"""It reads the files of all three; V2's are written with it."""

V3 = attrs.evolve(
    DEEPSEEK,
    modules={name: path for name, path in DEEPSEEK.modules.items() if name not in _DRAFTS},
    inverse=_sigmoid_fields,
    priority=-1,
)
"""How V3's files are written: without multi-token-prediction layers, as llama.cpp's converter
does."""

GLM_FLASH = attrs.evolve(
    DEEPSEEK,
    fields={**DEEPSEEK.fields, _NEXTN: "nextn_predict_layers"},
    inverse=_fields_with_drafts,
    priority=-1,
)
"""How files of GLM-4.7-Flash are written."""


def _glm_dsa(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What files do not store is GLM-5's. Without a list of the layers' kinds, or where all are of
    one kind, each has an index."""
    config = _deepseek({"scoring_func": "sigmoid", **fields})
    kinds = config.pop("indexer_types", None)
    if isinstance(kinds, list):
        whole = ["full" if kind in (True, "full") else "shared" for kind in kinds]
        config["indexer_types"] = whole[: config["num_hidden_layers"]]
    named = {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa"}
    return {**config, **named}


def _glm_dsa_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [kind == "full" for kind in config.get("indexer_types") or ()]
    return {**_fields_with_drafts(config), "indexer_types": kinds or None}


_INDEXER = f"{_ATTENTION}.indexer"

GLM_DSA = attrs.evolve(
    GLM_FLASH,
    architecture="glm-dsa",
    fields={
        **GLM_FLASH.fields,
        "index_n_heads": "attention.indexer.head_count",
        "index_head_dim": "attention.indexer.key_length",
        "index_topk": "attention.indexer.top_k",
        "indexer_types": "attention.indexer.types",
    },
    modules={
        **DEEPSEEK.modules,
        "blk.{n}.indexer.attn_q_b": f"{_INDEXER}.wq_b",
        "blk.{n}.indexer.attn_k": f"{_INDEXER}.wk",
        "blk.{n}.indexer.k_norm": f"{_INDEXER}.k_norm",
        "blk.{n}.indexer.proj": f"{_INDEXER}.weights_proj",
    },
    config=_glm_dsa,
    inverse=_glm_dsa_fields,
    priority=0,
)


def _deepseek_v32(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What files do not store is DeepSeek-V3.2's."""
    named = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"}
    return {**_deepseek({"scoring_func": "sigmoid", **fields}), **named}


DEEPSEEK_V32 = attrs.evolve(
    GLM_DSA, architecture="deepseek32", config=_deepseek_v32, inverse=_fields_with_drafts
)
"""llama.cpp since b9411. Its graph rotates halves of the index's heads, so that no row moves."""
DEEPSEEK_MOE = Dialect(
    architecture="deepseek",
    constants={"model_type": "deepseek", "scoring_func": "softmax", "norm_topk_prob": False},
    fields={
        "num_experts": None,
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "routed_scaling_factor": "expert_weights_scale",
    },
    modules={
        f"blk.{{n}}.ffn_{part}_shexp": f"{_MLP}.shared_experts.{part}_proj"
        for part in ("gate", "up", "down")
    },
    present={"attention_bias": "blk.0.attn_q.bias"},
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
)
LING = attrs.evolve(
    DEEPSEEK_MOE,
    architecture="bailingmoe",
    constants={"model_type": "deepseek", "scoring_func": "softmax"},
    fields={**DEEPSEEK_MOE.fields, "norm_topk_prob": "expert_weights_norm"},
)
"""Of Ling and Ring before 2.0. The head in files is normalized already, by llama.cpp's
converter."""
