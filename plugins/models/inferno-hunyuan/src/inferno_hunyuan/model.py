"""Hunyuan: a norm for each query and key head, after it is rotated; the rotary base is stretched by
a fixed factor. The mixtures have routed experts and a shared one in every layer.

https://github.com/Tencent-Hunyuan; reference: transformers/models/hunyuan_v1_dense and
hunyuan_v1_moe. Suffixes: T packed tokens, D hidden, H heads, C head dim.
"""

from __future__ import annotations

from functools import partial

from attrs import frozen
from torch import Tensor, nn

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    MixtureOfExperts,
    RMSNorm,
    Rope,
    Rotation,
    Routing,
    SelfAttention,
)
from inferno.nn.batch import Batch
from inferno_hunyuan.config import HunyuanConfig, HunyuanMoeConfig


@frozen(eq=False)
class NormLast(Rotation):
    """Rotates heads, then normalizes them."""

    def __call__(self, x_THC: Tensor, norm: RMSNorm | None = None) -> Tensor:
        rotated_THC = Rotation.__call__(self, x_THC)
        return rotated_THC if norm is None else norm(rotated_THC)


class HunyuanRope(Rope):
    def forward(self, batch: Batch) -> NormLast:
        rotation = super().forward(batch)
        return NormLast(rotation.cos_TE, rotation.sin_TE, rotation.ops)


class HunYuanDenseV1ForCausalLM(CausalLM):
    def __init__(self, config: HunyuanConfig) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.attention_bias,
                    output_bias=config.attention_bias,
                    head_norm=partial(RMSNorm, config.head_dim, config.rms_norm_eps),
                ),
                self.mlp(config),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        positions = config.max_position_embeddings
        rope = HunyuanRope(config.head_dim, config.rope, max_position_embeddings=positions)
        super().__init__(Decoder.of(config, layers, rope=rope), tied=config.tie_word_embeddings)

    @staticmethod
    def mlp(config: HunyuanConfig) -> nn.Module:
        return GatedMLP(config.hidden_size, config.intermediate_size)


class HunYuanMoEV1ForCausalLM(HunYuanDenseV1ForCausalLM):
    @staticmethod
    def mlp(config: HunyuanConfig) -> nn.Module:
        assert isinstance(config, HunyuanMoeConfig), "it is the architecture's"
        return MixtureOfExperts(
            config.num_experts,
            config.hidden_size,
            config.intermediate_size,
            Routing(top_k=config.moe_topk, normalize=True),
            shared_size=config.intermediate_size,
        )
