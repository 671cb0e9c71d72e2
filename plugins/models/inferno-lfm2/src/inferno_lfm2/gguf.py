"""The GGUF dialects of LFM2. Files say which layers have attention by their numbers of key/value
heads. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.configs import CONV, FULL, numbered_layers
from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"


def _lfm2(fields: Mapping[str, Any]) -> dict[str, Any]:
    heads = fields.get("num_key_value_heads")
    config = {**fields, "block_auto_adjust_ff_dim": False}
    if isinstance(heads, list):
        config["num_key_value_heads"] = max(heads, default=0)
        config["layer_types"] = [FULL if count else CONV for count in heads]
    return config


def _heads(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_key_value_heads"]
    kinds = numbered_layers(config, config["num_hidden_layers"])
    return {"num_key_value_heads": [heads if kind == FULL else 0 for kind in kinds]}


LFM2 = Dialect(
    architecture="lfm2",
    constants={"model_type": "lfm2"},
    fields={
        "rms_norm_eps": None,
        "norm_eps": "attention.layer_norm_rms_epsilon",
        "conv_L_cache": "shortconv.l_cache",
    },
    modules={
        "output_norm": None,
        "token_embd_norm": "model.norm",
        "blk.{n}.attn_output": f"{_LAYER}.self_attn.out_proj",
        "blk.{n}.ffn_gate": f"{_LAYER}.feed_forward.w1",
        "blk.{n}.ffn_up": f"{_LAYER}.feed_forward.w3",
        "blk.{n}.ffn_down": f"{_LAYER}.feed_forward.w2",
        "blk.{n}.shortconv.conv": f"{_LAYER}.conv.conv",
        "blk.{n}.shortconv.in_proj": f"{_LAYER}.conv.in_proj",
        "blk.{n}.shortconv.out_proj": f"{_LAYER}.conv.out_proj",
    },
    present={"conv_bias": "blk.0.shortconv.conv.bias"},
    squeezed={"blk.{n}.shortconv.conv": 1},
    config=_lfm2,
    inverse=_heads,
)
LFM2_MOE = attrs.evolve(
    LFM2,
    architecture="lfm2moe",
    constants={"model_type": "lfm2_moe", "norm_topk_prob": True, "routed_scaling_factor": 1.0},
    fields={**LFM2.fields, "num_dense_layers": "leading_dense_block_count"},
    modules={
        **LFM2.modules,
        "blk.{n}.ffn_gate_inp": f"{_LAYER}.feed_forward.gate",
        "blk.{n}.exp_probs_b.bias": f"{_LAYER}.feed_forward.gate.e_score_correction_bias",
        "blk.{n}.ffn_gate_exps": f"{_LAYER}.feed_forward.experts.{{e}}.w1",
        "blk.{n}.ffn_up_exps": f"{_LAYER}.feed_forward.experts.{{e}}.w3",
        "blk.{n}.ffn_down_exps": f"{_LAYER}.feed_forward.experts.{{e}}.w2",
    },
)
