"""Nemotron-H: each layer is one block, a Mamba-2 state, attention without positions, an MLP or, in
Nemotron 3 Nano, a mixture of experts. MLPs are squared ReLUs without a gate.

https://arxiv.org/abs/2504.03624; reference: transformers/models/nemotron_h. Suffixes: T packed
tokens, D hidden, L latent, I inner width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from inferno.configs import FULL
from inferno.contracts import LayerSpan, Shard
from inferno.nn import (
    WHOLE,
    CausalLM,
    Edges,
    Embedding,
    Experts,
    Linear,
    Mamba2Mixer,
    NoRope,
    RMSNorm,
    Router,
    Routing,
    SelfAttention,
    keep_layers,
    present,
)
from inferno.nn.batch import Batch
from inferno_nemotron_h.config import MAMBA, MOE, NemotronHConfig

NAMES = ("up_proj", "down_proj")


def relu2(x_TI: Tensor) -> Tensor:
    """The square of what is positive (arXiv:2109.08668)."""
    return torch.relu(x_TI).square()


class PlainMLP(nn.Module):
    """down(relu2(up(x)))"""

    def __init__(self, config: NemotronHConfig, intermediate_size: int) -> None:
        super().__init__()
        self.up_proj = Linear(config.hidden_size, intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def divide(self, shard: Shard) -> None:
        """Keep a part of the inner width."""
        if shard.divides(size := self.down_proj.weight.shape[1]):
            self.up_proj.keep_rows(shard.share(size))
            self.down_proj.keep_columns(shard.share(size), shard)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.down_proj(relu2(self.up_proj(x_TD)))
        return y_TD


class SparseMLP(nn.Module):
    """experts(x) + shared_experts(x), of which the routed experts may read and write narrower
    rows."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        size, latent, bias = config.hidden_size, config.moe_latent_size, config.mlp_bias
        routing = Routing(
            top_k=config.num_experts_per_tok,
            scoring="sigmoid",
            normalize=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
            num_groups=config.n_group,
            top_groups=config.topk_group,
            group_score="top2",
        )
        self.gate = Router(size, config.n_routed_experts, routing, correction=True)
        self.experts = Experts(
            config.n_routed_experts,
            latent or size,
            config.moe_intermediate_size,
            gated=relu2,
            names=NAMES,
        )
        self.shared_experts = PlainMLP(config, config.moe_shared_expert_intermediate_size)
        self.fc1_latent_proj = Linear(size, latent, bias=bias) if latent else None
        self.fc2_latent_proj = Linear(latent, size, bias=bias) if latent else None

    def forward(self, x_TD: Tensor) -> Tensor:
        x_TL = x_TD if self.fc1_latent_proj is None else self.fc1_latent_proj(x_TD)
        y_TL = self.experts(x_TL, *self.gate(x_TD))
        y_TD = y_TL if self.fc2_latent_proj is None else self.fc2_latent_proj(y_TL)
        sum_TD: Tensor = y_TD + self.shared_experts(x_TD)
        return sum_TD


class Block(nn.Module):
    """x + mixer(norm(x))"""

    def __init__(self, config: NemotronHConfig, layer: int) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        kind, layer_id = config.layer_types[layer], config.layer_id(layer)
        self.keeps = kind in (FULL, MAMBA)
        self.mixer: nn.Module
        if kind == MAMBA:
            self.mixer = Mamba2Mixer(
                layer_id,
                config.state_spec,
                config.hidden_size,
                eps=config.rms_norm_eps,
                bias=config.use_bias,
                conv_bias=config.use_conv_bias,
                time_step_limit=config.dt_limit,
            )
        elif kind == FULL:
            self.mixer = SelfAttention(layer_id, config.attention_spec(layer), config.hidden_size)
        elif kind == MOE:
            self.mixer = SparseMLP(config)
        else:
            self.mixer = PlainMLP(config, config.intermediate_size)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        x_TD, h_TD = self.norm.after(x_TD, delta_TD)
        return x_TD, self.mixer(h_TD, rotation, batch) if self.keeps else self.mixer(h_TD)


class Backbone(nn.Module):
    """Embedding, layers, norm."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        self.embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, n) for n in range(config.num_hidden_layers))
        self.norm_f = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = NoRope()
        self.edges = WHOLE

    def keep_layers(self, span: LayerSpan, edges: Edges) -> None:
        """Keep a pipeline stage's layers (`nn.Staged`)."""
        self.edges = edges
        keep_layers(self.layers, span)

    def forward(self, batch: Batch) -> Tensor:
        x_TD, delta_TD = self.edges.begin(self.embeddings, batch.token_ids_T), None
        rotation = self.rope(batch)
        for layer in present(self.layers):
            x_TD, delta_TD = layer(x_TD, delta_TD, rotation, batch)
        return self.edges.end(self._normalized, x_TD, delta_TD)

    def _normalized(self, x_TD: Tensor, delta_TD: Tensor | None) -> Tensor:
        return self.norm_f.after(x_TD, delta_TD)[1]


class NemotronHForCausalLM(CausalLM):
    def __init__(self, config: NemotronHConfig) -> None:
        tied, names = config.tie_word_embeddings, ("backbone", "embeddings")
        super().__init__(Backbone(config), tied=tied, names=names)
