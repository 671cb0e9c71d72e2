"""The GGUF dialect of Falcon-H1. Files have no factors: they are multiplied into the matrices.
Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs.mamba_files import DECAYS, SQUEEZED, mamba2_matrices, mamba2_modules
from inferno.contracts import Dialect, Recast

_LAYER = "model.layers.{n}"
_MAMBA, _MLP, _ATTENTION = f"{_LAYER}.mamba", f"{_LAYER}.feed_forward", f"{_LAYER}.self_attn"
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def _falcon(fields: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(fields)
    config["mamba_d_ssm"] = inner = config.pop("mamba_inner")
    config["mamba_d_head"] = inner // config["mamba_n_heads"]
    return config


def _multiplied(config: Mapping[str, Any]) -> Recast | None:
    """The model without factors: those on a matrix's inputs and outputs go into the matrix, those
    on its outputs into its bias too. A tied head whose factor differs becomes a separate matrix."""
    from inferno_falcon_h1.config import FalconH1Config  # once a model is written

    read = FalconH1Config.from_json(config)
    seen, keys = read.attention_in_multiplier, read.key_multiplier
    gate, down = read.mlp_multipliers
    inner, shared = read.mamba_inner, read.mamba_n_groups * read.mamba_d_state
    widths = (inner, inner, shared, shared, 0)
    state = tuple(zip(widths, read.ssm_multipliers, strict=True))
    after = {
        f"{_ATTENTION}.k_proj": ((0, keys),),
        f"{_ATTENTION}.o_proj": ((0, read.attention_out_multiplier),),
        f"{_MAMBA}.in_proj": state,
        f"{_MAMBA}.out_proj": ((0, read.ssm_out_multiplier),),
        f"{_MLP}.gate_proj": ((0, gate),),
        f"{_MLP}.down_proj": ((0, down),),
    }
    before = {
        f"{_ATTENTION}.q_proj": seen,
        f"{_ATTENTION}.k_proj": seen,
        f"{_ATTENTION}.v_proj": seen,
        f"{_MAMBA}.in_proj": read.ssm_in_multiplier,
    }
    factors = {f"{module}.bias": factor for module, factor in after.items()}
    for module in {**after, **before}:
        rows, first = after.get(module, ((0, 1.0),)), before.get(module, 1.0)
        factors[f"{module}.weight"] = tuple((size, factor * first) for size, factor in rows)
    embedding, head = read.embedding_multiplier, read.lm_head_multiplier
    factors |= {_EMBEDDING: ((0, embedding),), _HEAD: ((0, head),)}
    if all(factor == 1.0 for rows in factors.values() for _, factor in rows):
        return None
    untied = read.tie_word_embeddings and embedding != head
    fields = {name: value for name, value in config.items() if "multiplier" not in name}
    return Recast(
        config={**fields, "tie_word_embeddings": read.tie_word_embeddings and not untied},
        factors=factors,
        copies={_HEAD: _EMBEDDING} if untied else {},
    )


FALCON_H1 = Dialect(
    architecture="falcon-h1",
    constants={"model_type": "falcon_h1", "mamba_norm_before_gate": False},
    fields={
        "mamba_inner": "ssm.inner_size",
        "mamba_d_conv": "ssm.conv_kernel",
        "mamba_d_state": "ssm.state_size",
        "mamba_n_groups": "ssm.group_count",
        "mamba_n_heads": "ssm.time_step_rank",
    },
    modules={
        "output_norm": "model.final_layernorm",
        "blk.{n}.ffn_norm": f"{_LAYER}.pre_ff_layernorm",
        "blk.{n}.ffn_gate": f"{_MLP}.gate_proj",
        "blk.{n}.ffn_up": f"{_MLP}.up_proj",
        "blk.{n}.ffn_down": f"{_MLP}.down_proj",
        **mamba2_modules(_MAMBA),
    },
    present={
        "attention_bias": "blk.0.attn_q.bias",
        "mlp_bias": "blk.0.ffn_up.bias",
        "projectors_bias": "blk.0.ssm_out.bias",
        "mamba_conv_bias": "blk.0.ssm_conv1d.bias",
        "mamba_proj_bias": "blk.0.ssm_in.bias",
        "mamba_rms_norm": "blk.0.ssm_norm.weight",
    },
    squeezed=SQUEEZED,
    matrices=mamba2_matrices("mamba_n_heads", "mamba_n_groups"),
    decays=DECAYS,
    config=_falcon,
    recast=_multiplied,
)
