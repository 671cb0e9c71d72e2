"""Ling and Ring before 2.0, which DeepSeekMoE's code computes. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferno.contracts import Checkpoint, Fused, Spelling, per_expert, with_computed_head

if TYPE_CHECKING:
    from torch import Tensor

_LAYER = "model.layers.{n}"
_ATTENTION = f"{_LAYER}.self_attn"


LING = Spelling(
    name="BailingMoeForCausalLM",
    fields={
        "num_experts": "n_routed_experts",
        "num_shared_experts": "n_shared_experts",
        "use_qkv_bias": "attention_bias",
    },
    fixed=dict.fromkeys(("use_bias", "moe_router_enable_expert_bias", "use_qk_norm"), False),
    modules={
        "model.word_embeddings": "model.embed_tokens",
        f"{_LAYER}.attention.dense": f"{_ATTENTION}.o_proj",
    },
    fused={
        f"{_LAYER}.attention.query_key_value": Fused(
            {
                f"{_ATTENTION}.q_proj": "num_attention_heads",
                f"{_ATTENTION}.k_proj": "num_key_value_heads",
                f"{_ATTENTION}.v_proj": "num_key_value_heads",
            }
        )
    },
    unused=(r".*\.inv_freq",),
    checkpoints=(
        "inclusionAI/Ling-lite",
        "inclusionAI/Ling-lite-1.5",
        "inclusionAI/Ling-plus",
        "inclusionAI/Ling-Coder-lite",
        "inclusionAI/Ring-lite",
    ),
)


def with_normal_head(checkpoint: Checkpoint) -> Checkpoint:
    """View a Ling with `norm_head`, whose own code divides each of the head's columns by its
    length. Raises CheckpointError if it stores no plain head."""
    view = per_expert(checkpoint)
    if not view.config.get("norm_head"):
        return view
    return with_computed_head(view, _normal_columns, "which norm_head normalizes")


def _normal_columns(head_VD: Tensor) -> Tensor:
    normal_VD: Tensor = head_VD / (head_VD.norm(dim=0, keepdim=True) + 1e-7)
    return normal_VD
