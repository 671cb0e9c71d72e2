"""The GGUF dialects of Qwen3-Next and Qwen3.5, and of the latter's encoder. Imports no torch.

llama.cpp's converter stores a linear layer's queries, keys and values apart from its gates. Of
Qwen3.5 it orders the value heads otherwise: the first of each key head, then the second of each.
Models are read as files have them (`grouped_ba`, `tiled_heads`). Qwen3-Next is written as the first
files had it, with one matrix for these inputs; Qwen3.5 is not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs

from inferno.configs import FULL
from inferno.configs.encoder_files import SECTIONS, deep_encoder, with_sections
from inferno.contracts import Dialect

LINEAR = "linear_attention"
_LAYER = "model.layers.{n}"
_LINEAR = f"{_LAYER}.linear_attn"
_MLP = f"{_LAYER}.mlp"
_FILES_ONLY = ("inner_size", "recurrent", "fused")
_NORMS = (
    "output_norm",
    "blk.{n}.attn_norm",
    "blk.{n}.post_attention_norm",
    "blk.{n}.attn_q_norm",
    "blk.{n}.attn_k_norm",
    "blk.{n}.nextn.enorm",
    "blk.{n}.nextn.hnorm",
    "blk.{n}.nextn.shared_head_norm",
)
"""llama.cpp multiplies by the stored weight: its converter adds the 1."""


def _config(fields: Mapping[str, Any], tiled: bool) -> dict[str, Any]:
    """Subtract the multi-token-prediction layers, which files include in the layer count. The first
    files of Qwen3-Next have its linear layers' inputs as one matrix (`fused`)."""
    config = {name: value for name, value in fields.items() if name not in _FILES_ONLY}
    further = fields.get("num_nextn_predict_layers", 0)
    layers = fields["num_hidden_layers"] - further
    config |= {"num_hidden_layers": layers, "num_nextn_predict_layers": further}
    if isinstance(recurrent := fields.get("recurrent"), list):
        config["layer_types"] = [LINEAR if each else FULL for each in recurrent[:layers]]
    heads = fields["linear_num_value_heads"]
    config["linear_value_head_dim"] = fields["inner_size"] // heads
    config["separate_projections"] = not fields["fused"]
    config["grouped_ba"] = not tiled and not fields["fused"]
    config["tiled_heads"] = tiled and heads != fields["linear_num_key_heads"]
    config["num_experts"] = fields.get("num_experts") or 0
    return config


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    from inferno_qwen3_next.config import Qwen3NextConfig  # once a model is written

    read = Qwen3NextConfig.from_json(config)
    return {
        "inner_size": read.linear_num_value_heads * read.linear_value_head_dim,
        "recurrent": [kind == LINEAR for kind in read.layer_types],
        "num_nextn_predict_layers": 0,  # they are not written
    }


QWEN3_NEXT = Dialect(
    architecture="qwen3next",
    constants={"model_type": "qwen3_next", "norm_topk_prob": True},
    fields={
        "linear_conv_kernel_dim": "ssm.conv_kernel",
        "linear_key_head_dim": "ssm.state_size",
        "linear_num_key_heads": "ssm.group_count",
        "linear_num_value_heads": "ssm.time_step_rank",
        "inner_size": "ssm.inner_size",
        "full_attention_interval": "full_attention_interval",
        "recurrent": "attention.recurrent_layers",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "num_nextn_predict_layers": "nextn_predict_layers",
    },
    present={"fused": "blk.{n}.ssm_in.weight", "attention_bias": "blk.{n}.attn_q.bias"},
    modules={
        "blk.{n}.ffn_norm": None,
        "blk.{n}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{n}.attn_qkv": f"{_LINEAR}.in_proj_qkv",
        "blk.{n}.attn_gate": f"{_LINEAR}.in_proj_z",
        "blk.{n}.ssm_in": f"{_LINEAR}.in_proj_qkvz",
        "blk.{n}.ssm_ba": f"{_LINEAR}.in_proj_ba",
        "blk.{n}.ssm_conv1d": f"{_LINEAR}.conv1d",
        "blk.{n}.ssm_dt.bias": f"{_LINEAR}.dt_bias",
        "blk.{n}.ssm_a": f"{_LINEAR}.A_log",
        "blk.{n}.ssm_norm": f"{_LINEAR}.norm",
        "blk.{n}.ssm_out": f"{_LINEAR}.out_proj",
        "blk.{n}.ffn_gate_inp_shexp": f"{_MLP}.shared_expert_gate",
        "blk.{n}.ffn_gate_shexp": f"{_MLP}.shared_expert.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_MLP}.shared_expert.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MLP}.shared_expert.down_proj",
        "blk.{n}.nextn.eh_proj": f"{_LAYER}.fc",
        "blk.{n}.nextn.enorm": f"{_LAYER}.pre_fc_norm_embedding",
        "blk.{n}.nextn.hnorm": f"{_LAYER}.pre_fc_norm_hidden",
        "blk.{n}.nextn.shared_head_norm": f"{_LAYER}.norm",
    },
    added=dict.fromkeys(_NORMS, 1.0),
    squeezed={"blk.{n}.ssm_conv1d": 1, "blk.{n}.ffn_gate_inp_shexp": 0},
    decays=frozenset({"blk.{n}.ssm_a"}),
    config=partial(_config, tiled=False),
    inverse=_fields,
)
_APART = {
    **{name: path for name, path in QWEN3_NEXT.modules.items() if name != "blk.{n}.ssm_ba"},
    "blk.{n}.ssm_beta": f"{_LINEAR}.in_proj_b",
    "blk.{n}.ssm_alpha": f"{_LINEAR}.in_proj_a",
}


def _qwen35(fields: Mapping[str, Any]) -> dict[str, Any]:
    return with_sections(_config(fields, tiled=True))


_SHARED = {name for name in _APART if "shexp" in name}
QWEN35_MOE = attrs.evolve(
    QWEN3_NEXT,
    architecture="qwen35moe",
    constants={"model_type": "qwen3_5_moe_text", "norm_topk_prob": True},
    fields={**QWEN3_NEXT.fields, **SECTIONS["fields"]},
    modules={name: path for name, path in _APART.items() if name != "blk.{n}.ssm_in"},
    config=_qwen35,
    inverse=None,
)
QWEN35 = attrs.evolve(
    QWEN35_MOE,
    architecture="qwen35",
    constants={"model_type": "qwen3_5_text"},
    modules={n: p for n, p in QWEN35_MOE.modules.items() if n not in _SHARED},
    squeezed={"blk.{n}.ssm_conv1d": 1},
)
QWEN35_VL = deep_encoder("qwen3vl_merger", ("qwen35",), "qwen3_5")
QWEN35_MOE_VL = deep_encoder("qwen3vl_merger", ("qwen35moe",), "qwen3_5_moe")
