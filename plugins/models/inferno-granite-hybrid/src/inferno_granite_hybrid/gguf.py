"""The GGUF dialects of Granite 3, to which Granite 4 with attention in every layer and no experts
belongs, of Granite 3 with experts, and of Granite 4 with states. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from inferno.configs import FULL
from inferno.configs.mamba_files import DECAYS, SQUEEZED, mamba2_matrices, mamba2_modules
from inferno.contracts import Dialect, Recast


def _granite(fields: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp's reader takes `rope.scaling.finetuned` for whether heads are rotated at all."""
    config = dict(fields)
    if not config.pop("rotates", True):
        config["position_embedding_type"] = "nope"
        config.pop("partial_rotary_factor", None)
    return config


def _rotates(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"rotates": False} if config.get("position_embedding_type") == "nope" else {}


GRANITE = Dialect(
    architecture="granite",
    constants={"model_type": "granite"},
    fields={
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
        "rotates": "rope.scaling.finetuned",
    },
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"},
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
    config=_granite,
    inverse=_rotates,
)


def _minicpm(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add what files lack: those from before April 2025 lack the factors, and have those of
    MiniCPM-2B. Scores are scaled as usual."""
    width, layers = fields["hidden_size"], fields["num_hidden_layers"]
    factors = {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 1.4 / math.sqrt(layers),
        "logits_scaling": width / 256,
    }
    head_dim = fields.get("head_dim") or width / fields["num_attention_heads"]
    return {**factors, **fields, "attention_multiplier": head_dim**-0.5}


MINICPM = attrs.evolve(
    GRANITE,
    architecture="minicpm",
    fields={
        name: key
        for name, key in GRANITE.fields.items()
        if name not in ("attention_multiplier", "rotates")
    },
    config=_minicpm,
    inverse=None,
)


def _granite_moe(fields: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp has one name for mixtures with a shared MLP and without."""
    config = _granite(fields)
    if not config.get("shared_intermediate_size"):
        return config
    named = {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
    return {**config, **named}


_LAYER = "model.layers.{n}"
_MAMBA, _SHARED, _EXPERTS = (
    f"{_LAYER}.{part}" for part in ("mamba", "shared_mlp", "block_sparse_moe.experts.{e}")
)


def _hybrid(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files say which layers have attention by their numbers of key/value heads."""
    config = dict(fields)
    heads, layers = config["num_key_value_heads"], int(config["num_hidden_layers"])
    heads = heads if isinstance(heads, list) else [heads] * layers
    config["num_key_value_heads"] = max(heads) or config["num_attention_heads"]
    config["layer_types"] = ["attention" if count else "mamba" for count in heads]
    config["position_embedding_type"] = "rope" if config.pop("rotates", True) else "nope"
    inner = config.pop("mamba_inner")
    config["mamba_d_head"] = inner // config["mamba_n_heads"]
    config["mamba_expand"] = inner // config["hidden_size"]
    if not config.setdefault("num_local_experts", 0):
        config["shared_intermediate_size"] = config["intermediate_size"]
    return config


def _layers(config: Mapping[str, Any]) -> dict[str, Any]:
    from inferno_granite_hybrid.config import GraniteHybridConfig  # once a model is written

    read = GraniteHybridConfig.from_json(config)
    heads = [read.num_key_value_heads if kind == FULL else 0 for kind in read.layer_types]
    width = read.intermediate_size if read.num_experts else read.shared_intermediate_size
    return {"num_key_value_heads": heads, "rotates": read.rotates, "intermediate_size": width}


def _split(config: Mapping[str, Any]) -> Recast | None:
    """The model with gate and up of the shared MLP as two matrices."""
    if config.get("split_mlp"):
        return None
    parts = (f"{_SHARED}.gate_proj", f"{_SHARED}.up_proj")
    return Recast(config={**config, "split_mlp": True}, splits={f"{_SHARED}.input_linear": parts})


def _split_shared(config: Mapping[str, Any]) -> Recast | None:
    return _split(config) if config.get("shared_intermediate_size") else None


def _has_no_experts(config: Mapping[str, Any]) -> bool:
    from inferno_granite_hybrid.config import GraniteHybridConfig

    return not GraniteHybridConfig.from_json(config).num_experts


_SHARED_OF_EXPERTS = {
    "blk.{n}.ffn_gate_shexp": f"{_SHARED}.gate_proj",
    "blk.{n}.ffn_up_shexp": f"{_SHARED}.up_proj",
    "blk.{n}.ffn_down_shexp": f"{_SHARED}.output_linear",
    "blk.{n}.ffn_gate_inp": f"{_LAYER}.block_sparse_moe.router",
    "blk.{n}.ffn_gate_exps": f"{_EXPERTS}.gate_proj",
    "blk.{n}.ffn_up_exps": f"{_EXPERTS}.up_proj",
    "blk.{n}.ffn_down_exps": f"{_EXPERTS}.down_proj",
}
_SHARED_ALONE = {
    "blk.{n}.ffn_gate": f"{_SHARED}.gate_proj",
    "blk.{n}.ffn_up": f"{_SHARED}.up_proj",
    "blk.{n}.ffn_down": f"{_SHARED}.output_linear",
}
_HYBRID = Dialect(
    architecture="granitehybrid",
    constants={"model_type": "granitemoehybrid", "split_mlp": True},
    fields={
        **GRANITE.fields,
        "shared_intermediate_size": "expert_shared_feed_forward_length",
        "num_experts": None,
        "num_local_experts": "expert_count",
        "moe_intermediate_size": None,
        "mamba_inner": "ssm.inner_size",
        "mamba_d_conv": "ssm.conv_kernel",
        "mamba_d_state": "ssm.state_size",
        "mamba_n_groups": "ssm.group_count",
        "mamba_n_heads": "ssm.time_step_rank",
    },
    modules={
        **mamba2_modules(_MAMBA),
        **_SHARED_OF_EXPERTS,
        **_SHARED_ALONE,
    },
    present={
        "attention_bias": "blk.{n}.attn_q.bias",
        "mamba_conv_bias": "blk.{n}.ssm_conv1d.bias",
        "mamba_proj_bias": "blk.{n}.ssm_in.bias",
    },
    rotary_pairs=GRANITE.rotary_pairs,
    squeezed=SQUEEZED,
    matrices=mamba2_matrices("mamba_n_heads", "mamba_n_groups"),
    decays=DECAYS,
    config=_hybrid,
    inverse=_layers,
    recast=_split,
)
GRANITE_MOE = attrs.evolve(
    GRANITE,
    architecture="granitemoe",
    constants={"model_type": "granitemoe", "split_mlp": True},
    fields={
        **GRANITE.fields,
        "shared_intermediate_size": "expert_shared_feed_forward_length",
        "num_experts": None,
        "num_local_experts": "expert_count",
        "moe_intermediate_size": None,
    },
    present={"attention_bias": "blk.0.attn_q.bias"},
    modules=_SHARED_OF_EXPERTS,
    config=_granite_moe,
    recast=_split_shared,
)
GRANITE_MOE_SHARED = attrs.evolve(
    GRANITE_MOE,
    constants={**GRANITE_MOE.constants, "model_type": "granitemoeshared"},
    priority=-20,
)
"""Files say which of the two they are by the width of the shared MLP alone."""
_WITHOUT_EXPERTS = attrs.evolve(
    _HYBRID,
    modules={
        **{n: path for n, path in _HYBRID.modules.items() if n not in _SHARED_OF_EXPERTS},
        **dict.fromkeys(_SHARED_OF_EXPERTS),
    },
    writes=_has_no_experts,
)
GRANITE_HYBRID = attrs.evolve(_HYBRID, variants=(_WITHOUT_EXPERTS,))
