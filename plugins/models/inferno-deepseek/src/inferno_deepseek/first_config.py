"""What DeepSeekMoE reads of `config.json`, under its names, and how Ling writes the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from attrs import frozen

from inferno.configs import (
    DecoderConfig,
    check_experts,
    check_known,
    check_positive,
    with_dense_layers,
)
from inferno.contracts import (
    Checkpoint,
    Dialect,
    Fused,
    Spelling,
    per_expert,
    with_computed_head,
)
from inferno.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

_LAYER = "model.layers.{n}"
_ATTENTION, _MLP = f"{_LAYER}.self_attn", f"{_LAYER}.mlp"


@frozen(kw_only=True)
class DeepseekMoEConfig(DecoderConfig):
    """`intermediate_size` is that of the layers without experts."""

    max_position_embeddings: int = 2048
    attention_bias: bool = False
    moe_intermediate_size: int
    """Width of one expert."""
    n_routed_experts: int
    n_shared_experts: int
    """Width of the shared expert, in routed experts."""
    num_experts_per_tok: int
    first_k_dense_replace: int = 0
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "scoring_func", None, "softmax")
        check_known(config, "topk_method", None, "greedy")
        check_known(config, "moe_layer_freq", None, 1)
        read = super().from_json(with_dense_layers(config))
        check_positive(
            moe_intermediate_size=read.moe_intermediate_size, n_shared_experts=read.n_shared_experts
        )
        check_experts(read.n_routed_experts, read.num_experts_per_tok)
        return read

    @property
    def num_experts(self) -> int:
        return self.n_routed_experts

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("*.rotary_emb.inv_freq", *super().unused_tensors)


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


def _ling(fields: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("use_bias", "moe_router_enable_expert_bias", "use_qk_norm"):
        if fields.get(name):
            raise UnsupportedError(
                f"BailingMoeForCausalLM with {name} cannot run here", "Ling-lite has it off."
            )
    return dict(fields)


LING = Spelling(
    name="BailingMoeForCausalLM",
    fields={
        "num_experts": "n_routed_experts",
        "num_shared_experts": "n_shared_experts",
        "use_qkv_bias": "attention_bias",
    },
    config=_ling,
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
