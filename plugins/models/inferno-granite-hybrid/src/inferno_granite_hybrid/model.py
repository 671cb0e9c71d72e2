"""Granite: what is added to the residual stream is scaled, as embeddings, scores and logits are.
Granite 3 is Llama otherwise, or has experts in every layer. Of Granite 4 most layers are Mamba-2, a
few attention without positions; with a shared MLP, in some models beside routed experts.

https://arxiv.org/abs/2405.21060 (Mamba-2), https://www.ibm.com/granite/docs/models/granite;
reference: transformers/models/granite, granitemoe, granitemoehybrid. Suffixes: T packed tokens, D
hidden, I inner width of the MLP, S sampled rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from inferno.configs import FULL
from inferno.contracts import Shard
from inferno.nn import (
    CausalLM,
    Decoder,
    Experts,
    FusedGatedMLP,
    GatedMLP,
    Mamba2Mixer,
    NoRope,
    RMSNorm,
    Router,
    Routing,
    SelfAttention,
    sum_once,
)
from inferno.nn.batch import Batch
from inferno_granite_hybrid.config import GraniteConfig, GraniteHybridConfig, GraniteMoeConfig


class SparseMoE(nn.Module):
    """Routed experts."""

    def __init__(self, config: GraniteHybridConfig | GraniteMoeConfig) -> None:
        super().__init__()
        # The softmax over the picked ones alone is that over all, normalized.
        routing = Routing(top_k=config.num_experts_per_tok, normalize=True)
        self.router = Router(config.hidden_size, config.num_experts, routing)
        self.experts = Experts(config.num_experts, config.hidden_size, config.intermediate_size)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.experts(x_TD, *self.router(x_TD))
        return y_TD


class ScaledLayer(nn.Module):
    """x + m · mixer(norm(x)), then x + m · mlp(norm(x))."""

    def __init__(self, config: GraniteConfig) -> None:
        super().__init__()
        self.multiplier = config.residual_multiplier
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def mixed(self, x_TD: Tensor, rotation: Any, batch: Batch) -> Tensor:
        raise NotImplementedError

    def fed(self, x_TD: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        delta_TD = self.mixed(h_TD, rotation, batch) * self.multiplier
        x_TD, h_TD = self.post_attention_layernorm.after(x_TD, delta_TD)
        return x_TD, self.fed(h_TD) * self.multiplier


class DenseLayer(ScaledLayer):
    """Attention and an MLP."""

    def __init__(self, config: GraniteConfig, layer_id: int) -> None:
        super().__init__(config)
        self.self_attn = _attention(config, layer_id)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)

    def mixed(self, x_TD: Tensor, rotation: Any, batch: Batch) -> Tensor:
        y_TD: Tensor = self.self_attn(x_TD, rotation, batch)
        return y_TD

    def fed(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.mlp(x_TD)
        return y_TD


class FedLayer(ScaledLayer):
    """A shared MLP, routed experts, or both beside each other."""

    def __init__(self, config: GraniteHybridConfig | GraniteMoeConfig) -> None:
        super().__init__(config)
        self.shared_mlp = _shared(config) if config.shared_intermediate_size else None
        self.block_sparse_moe = SparseMoE(config) if config.num_experts else None
        self.summed = False

    def divide(self, shard: Shard) -> None:
        """Sum once over the ranks, after both parts are added."""
        if self.block_sparse_moe is not None and self.shared_mlp is not None:
            self.summed = sum_once(self.block_sparse_moe.experts, self.shared_mlp)

    def fed(self, x_TD: Tensor) -> Tensor:
        parts = [part for part in (self.block_sparse_moe, self.shared_mlp) if part is not None]
        y_TD: Tensor = parts[0](x_TD)
        if len(parts) == 1:
            return y_TD
        assert self.shared_mlp is not None, "the other part"
        y_TD = y_TD + self.shared_mlp(x_TD)
        return self.shared_mlp.ops.all_reduce(y_TD) if self.summed else y_TD


def _shared(config: GraniteHybridConfig | GraniteMoeConfig) -> GatedMLP | FusedGatedMLP:
    sizes, down = (config.hidden_size, config.shared_intermediate_size), "output_linear"
    if config.split_mlp:
        return GatedMLP(*sizes, names=("gate_proj", "up_proj", down))
    return FusedGatedMLP(*sizes, names=("input_linear", down))


class HybridLayer(FedLayer):
    """Attention or a state, which is stored under its kind's name."""

    def __init__(self, config: GraniteHybridConfig, layer_id: int) -> None:
        super().__init__(config)
        self.full = config.layer_types[layer_id] == FULL
        if self.full:
            self.self_attn = _attention(config, layer_id)
        else:
            self.mamba = Mamba2Mixer(
                layer_id,
                config.state_spec,
                config.hidden_size,
                eps=config.rms_norm_eps,
                bias=config.mamba_proj_bias,
                conv_bias=config.mamba_conv_bias,
                time_step_limit=config.dt_limit,
            )

    def mixed(self, x_TD: Tensor, rotation: Any, batch: Batch) -> Tensor:
        mixer = self.self_attn if self.full else self.mamba
        y_TD: Tensor = mixer(x_TD, rotation, batch)
        return y_TD


class MixtureLayer(FedLayer):
    """Attention and experts."""

    def __init__(self, config: GraniteMoeConfig, layer_id: int) -> None:
        super().__init__(config)
        self.self_attn = _attention(config, layer_id)

    def mixed(self, x_TD: Tensor, rotation: Any, batch: Batch) -> Tensor:
        y_TD: Tensor = self.self_attn(x_TD, rotation, batch)
        return y_TD


def _attention(config: GraniteConfig, layer_id: int) -> SelfAttention:
    spec, bias = config.attention_spec(layer_id), config.attention_bias
    return SelfAttention(layer_id, spec, config.hidden_size, bias=bias, output_bias=bias)


class ScaledLM(CausalLM):
    """A decoder whose embeddings and logits are scaled, with rotary positions or none."""

    def __init__(self, config: GraniteConfig, layer: Callable[[Any, int], nn.Module]) -> None:
        decoder = Decoder.of(
            config,
            (layer(config, layer_id) for layer_id in range(config.num_hidden_layers)),
            rope=None if config.rotates else NoRope(),
            embedding_scale=config.embedding_multiplier,
        )
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.logits_scaling = config.logits_scaling

    def logits(self, x_SD: Tensor) -> Tensor:
        return super().logits(x_SD) / self.logits_scaling


class GraniteForCausalLM(ScaledLM):
    def __init__(self, config: GraniteConfig) -> None:
        super().__init__(config, DenseLayer)


class GraniteMoeHybridForCausalLM(ScaledLM):
    def __init__(self, config: GraniteHybridConfig) -> None:
        super().__init__(config, HybridLayer)


class GraniteMoeForCausalLM(ScaledLM):
    def __init__(self, config: GraniteMoeConfig) -> None:
        super().__init__(config, MixtureLayer)
