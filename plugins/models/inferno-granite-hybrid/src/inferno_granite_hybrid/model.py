"""Granite 4: most layers Mamba-2, a few attention without positions; a shared MLP, in some models
beside routed experts; what is added to the residual stream is scaled.

https://arxiv.org/abs/2405.21060 (Mamba-2), https://www.ibm.com/granite/docs/models/granite;
reference: transformers/models/granitemoehybrid. Suffixes: T packed tokens, D hidden, I inner width
of the MLP, H heads, C head dim, S sampled rows, V vocabulary.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from inferno.configs import FULL
from inferno.nn import (
    CausalLM,
    Decoder,
    Experts,
    Finalize,
    Layer,
    Linear,
    Mamba2Mixer,
    NoRope,
    RMSNorm,
    Router,
    Routing,
    SelfAttention,
)
from inferno.nn.batch import Batch
from inferno.ops import reference as ops
from inferno_granite_hybrid.config import GraniteHybridConfig


class SharedMLP(Layer):
    """A gated MLP that every token passes; the gate's rows come first."""

    def __init__(self, config: GraniteHybridConfig) -> None:
        super().__init__()
        inner = config.shared_intermediate_size
        self.input_linear = Linear(config.hidden_size, 2 * inner)
        self.output_linear = Linear(inner, config.hidden_size)
        self.ops = ops.TORCH

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops

    def forward(self, x_TD: Tensor) -> Tensor:
        gate_TI, up_TI = self.input_linear(x_TD).chunk(2, -1)
        y_TD: Tensor = self.output_linear(self.ops.silu_mul(gate_TI, up_TI))
        return y_TD


class SparseMoE(nn.Module):
    """Routed experts."""

    def __init__(self, config: GraniteHybridConfig) -> None:
        super().__init__()
        # The softmax over the picked ones alone is that over all, normalized.
        routing = Routing(top_k=config.num_experts_per_tok, normalize=True)
        self.router = Router(config.hidden_size, config.num_experts, routing)
        self.experts = Experts(config.num_experts, config.hidden_size, config.intermediate_size)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.experts(x_TD, *self.router(x_TD))
        return y_TD


class HybridLayer(nn.Module):
    """x + m · mixer(norm(x)), then x + m · mlp(norm(x)). The mixer is stored under its kind's
    name."""

    def __init__(self, config: GraniteHybridConfig, layer_id: int) -> None:
        super().__init__()
        hidden, eps, bias = config.hidden_size, config.rms_norm_eps, config.attention_bias
        self.full = config.layer_types[layer_id] == FULL
        self.multiplier = config.residual_multiplier
        if self.full:
            spec = config.attention_spec(layer_id)
            self.self_attn = SelfAttention(layer_id, spec, hidden, bias=bias, output_bias=bias)
        else:
            self.mamba = Mamba2Mixer(
                layer_id,
                config.state_spec,
                hidden,
                eps=eps,
                bias=config.mamba_proj_bias,
                conv_bias=config.mamba_conv_bias,
                time_step_limit=config.dt_limit,
            )
        self.shared_mlp = SharedMLP(config)
        self.block_sparse_moe = SparseMoE(config) if config.num_experts else None
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        mixer = self.self_attn if self.full else self.mamba
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        delta_TD = mixer(h_TD, rotation, batch) * self.multiplier
        x_TD, h_TD = self.post_attention_layernorm.after(x_TD, delta_TD)
        y_TD = self.shared_mlp(h_TD)
        if self.block_sparse_moe is not None:
            y_TD = self.block_sparse_moe(h_TD) + y_TD
        return x_TD, y_TD * self.multiplier


class GraniteMoeHybridForCausalLM(CausalLM):
    def __init__(self, config: GraniteHybridConfig) -> None:
        decoder = Decoder.of(
            config,
            (HybridLayer(config, layer_id) for layer_id in range(config.num_hidden_layers)),
            rope=None if config.rotates else NoRope(),
            embedding_scale=config.embedding_multiplier,
        )
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.logits_scaling = config.logits_scaling

    def logits(self, x_SD: Tensor) -> Tensor:
        return super().logits(x_SD) / self.logits_scaling
