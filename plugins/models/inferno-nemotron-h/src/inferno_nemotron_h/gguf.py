"""The GGUF dialects of Nemotron-H: one of models with MLPs, one of those with experts. Files say
what a layer is by its number of key/value heads and its inner width, 0 in both if it has a state.
Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.configs import FULL
from inferno.configs.mamba_files import DECAYS, SQUEEZED, mamba2_matrices, mamba2_modules
from inferno.contracts import Dialect

MAMBA, MLP, MOE = "mamba", "mlp", "moe"
_MIXER = "backbone.layers.{n}.mixer"


def _config(fields: Mapping[str, Any], fed: str) -> dict[str, Any]:
    """Raises LookupError, TypeError or ValueError for numbers that are not those of layers."""
    config, layers = dict(fields), int(fields["num_hidden_layers"])
    heads, widths = (
        value if isinstance(value := config.pop(name), list) else [value] * layers
        for name in ("num_key_value_heads", "intermediate_size")
    )
    config["layers_block_type"] = [
        FULL if count else fed if width else MAMBA
        for count, width in zip(heads, widths, strict=True)
    ]
    config["num_key_value_heads"] = max(heads) or config["num_attention_heads"]
    if fed == MLP:
        config["intermediate_size"] = max(widths) or None
    config["mamba_head_dim"] = config.pop("inner_size") // config["mamba_num_heads"]
    return config


def _with_mlps(fields: Mapping[str, Any]) -> dict[str, Any]:
    return _config(fields, MLP)


def _with_experts(fields: Mapping[str, Any]) -> dict[str, Any]:
    config = _config(fields, MOE)
    config.setdefault("topk_group", config.get("n_group", 1))
    return config


def _layers(config: Mapping[str, Any]) -> dict[str, Any]:
    from inferno_nemotron_h.config import NemotronHConfig  # once a model is written

    read = NemotronHConfig.from_json(config)
    widths = {MLP: read.intermediate_size, MOE: read.moe_intermediate_size}
    heads = read.num_key_value_heads
    return {
        "num_key_value_heads": [heads if kind == FULL else 0 for kind in read.layer_types],
        "intermediate_size": [widths.get(kind, 0) for kind in read.layer_types],
        "layer_norm_epsilon": read.rms_norm_eps,
        "inner_size": read.mamba_num_heads * read.mamba_head_dim,
    }


def _has_experts(config: Mapping[str, Any]) -> bool:
    from inferno_nemotron_h.config import NemotronHConfig

    return MOE in NemotronHConfig.from_json(config).layer_types


NEMOTRON_H = Dialect(
    architecture="nemotron_h",
    constants={"model_type": "nemotron_h"},
    fields={
        "rms_norm_eps": None,
        "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
        "inner_size": "ssm.inner_size",
        "conv_kernel": "ssm.conv_kernel",
        "mamba_num_heads": "ssm.time_step_rank",
        "n_groups": "ssm.group_count",
        "ssm_state_size": "ssm.state_size",
        "num_experts": None,
        "num_experts_per_tok": None,
        "moe_intermediate_size": None,
    },
    modules={
        "token_embd": "backbone.embeddings",
        "output_norm": "backbone.norm_f",
        "blk.{n}.attn_norm": "backbone.layers.{n}.norm",
        "blk.{n}.attn_q": f"{_MIXER}.q_proj",
        "blk.{n}.attn_k": f"{_MIXER}.k_proj",
        "blk.{n}.attn_v": f"{_MIXER}.v_proj",
        "blk.{n}.attn_output": f"{_MIXER}.o_proj",
        "blk.{n}.ffn_up": f"{_MIXER}.up_proj",
        "blk.{n}.ffn_down": f"{_MIXER}.down_proj",
        **mamba2_modules(_MIXER),
    },
    present={
        "mlp_bias": "blk.{n}.ffn_up.bias",
        "use_bias": "blk.{n}.ssm_in.bias",
        "use_conv_bias": "blk.{n}.ssm_conv1d.bias",
    },
    # The converter is that of Llama, which pairs rows although nothing is rotated here.
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
    squeezed=SQUEEZED,
    matrices=mamba2_matrices("mamba_num_heads", "n_groups"),
    decays=DECAYS,
    config=_with_mlps,
    inverse=_layers,
)
NEMOTRON_H_MOE = attrs.evolve(
    NEMOTRON_H,
    architecture="nemotron_h_moe",
    fields={
        **NEMOTRON_H.fields,
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "moe_latent_size": "moe_latent_size",
        "norm_topk_prob": "expert_weights_norm",
        "routed_scaling_factor": "expert_weights_scale",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
    },
    modules={
        **NEMOTRON_H.modules,
        "blk.{n}.ffn_gate_inp": f"{_MIXER}.gate",
        "blk.{n}.exp_probs_b.bias": f"{_MIXER}.gate.e_score_correction_bias",
        "blk.{n}.ffn_up_exps": f"{_MIXER}.experts.{{e}}.up_proj",
        "blk.{n}.ffn_down_exps": f"{_MIXER}.experts.{{e}}.down_proj",
        "blk.{n}.ffn_latent_down": f"{_MIXER}.fc1_latent_proj",
        "blk.{n}.ffn_latent_up": f"{_MIXER}.fc2_latent_proj",
        "blk.{n}.ffn_up_shexp": f"{_MIXER}.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MIXER}.shared_experts.down_proj",
    },
    present={**NEMOTRON_H.present, "mlp_bias": "blk.{n}.ffn_up_shexp.bias"},
    config=_with_experts,
    writes=_has_experts,
)
GGUF = attrs.evolve(NEMOTRON_H, variants=(NEMOTRON_H_MOE,))
