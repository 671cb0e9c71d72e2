"""Falcon-H1: attention and a Mamba-2 state side by side in every layer, with factors on most of
what is added and multiplied (µP, arXiv:2203.03466).

https://arxiv.org/abs/2507.22448; reference: transformers/models/falcon_h1. Suffixes: T packed
tokens, D hidden, I inner width, S sampled rows, V vocabulary.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from inferno.nn import (
    CausalLM,
    Decoder,
    GatedMLP,
    Mamba2Mixer,
    RMSNorm,
    SelfAttention,
)
from inferno.nn.batch import Batch
from inferno_falcon_h1.config import FalconH1Config


class ScaledMLP(GatedMLP):
    """down(silu(m · gate(x)) · up(x)) · n"""

    def __init__(self, config: FalconH1Config) -> None:
        super().__init__(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.gate_scale, self.scale = config.mlp_multipliers

    def forward(self, x_TD: Tensor) -> Tensor:
        gate_TI, up_TI = self.gate_up(x_TD)
        y_TD: Tensor = self.down(self.ops.silu_mul(gate_TI * self.gate_scale, up_TI))
        return y_TD * self.scale


class HybridLayer(nn.Module):
    """x + a · self_attn(b · h) + c · mamba(d · h), where h is norm(x), then x + mlp(norm(x))."""

    def __init__(self, config: FalconH1Config, layer: int) -> None:
        super().__init__()
        size, eps, bias = config.hidden_size, config.rms_norm_eps, config.attention_bias
        spec = config.attention_spec(layer)
        self.self_attn = SelfAttention(2 * layer, spec, size, bias=bias, output_bias=bias)
        self.mamba = Mamba2Mixer(
            2 * layer + 1,
            config.state_spec,
            size,
            eps=eps,
            bias=config.mamba_proj_bias,
            output_bias=config.projectors_bias,
            conv_bias=config.mamba_conv_bias,
            time_step_limit=config.dt_limit,
            norm=("gate last" if config.mamba_norm_before_gate else "gate first")
            if config.mamba_rms_norm
            else None,
            scales=config.ssm_multipliers,
        )
        self.feed_forward = ScaledMLP(config)
        self.input_layernorm = RMSNorm(size, eps)
        self.pre_ff_layernorm = RMSNorm(size, eps)
        self.attention_in, self.attention_out = (
            config.attention_in_multiplier,
            config.attention_out_multiplier,
        )
        self.state_in, self.state_out = config.ssm_in_multiplier, config.ssm_out_multiplier

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        state_TD = self.mamba(h_TD * self.state_in, rotation, batch) * self.state_out
        seen_TD = self.self_attn(h_TD * self.attention_in, rotation, batch) * self.attention_out
        x_TD, h_TD = self.pre_ff_layernorm.after(x_TD, state_TD + seen_TD)
        return x_TD, self.feed_forward(h_TD)


class FalconH1ForCausalLM(CausalLM):
    def __init__(self, config: FalconH1Config) -> None:
        layers = (HybridLayer(config, layer) for layer in range(config.num_hidden_layers))
        scale = config.embedding_multiplier
        decoder = Decoder.of(config, layers, embedding_scale=scale, norm_name="final_layernorm")
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.scale = config.lm_head_multiplier

    def logits(self, x_SD: Tensor) -> Tensor:
        y_SV: Tensor = super().logits(x_SD) * self.scale
        return y_SV
