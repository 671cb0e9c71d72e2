"""LFM2: most layers are short convolutions between two gates, the others attention. LFM2-MoE has
routed experts in place of most MLPs.

https://arxiv.org/abs/2511.23404; reference: transformers/models/lfm2, lfm2_moe. Suffixes: T packed
tokens, D hidden, S sequences, P inputs that a convolution looks back at.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from inferno.configs import FULL
from inferno.contracts import Shard
from inferno.nn import (
    CausalConv,
    CausalLM,
    Decoder,
    GatedMLP,
    Linear,
    MixtureOfExperts,
    RMSNorm,
    Routing,
    SelfAttention,
    State,
)
from inferno.nn.batch import Batch
from inferno_lfm2.config import Lfm2Config, Lfm2MoeConfig

NAMES = ("w1", "w3", "w2")
"""Those of gate, up and down in checkpoints."""


class ShortConv(nn.Module):
    """out_proj(c · conv(b · x)), where b, c and x are in_proj's rows."""

    def __init__(self, config: Lfm2Config, layer_id: int) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.conv_bias
        self.in_proj = Linear(size, 3 * size, bias=bias)
        self.conv = CausalConv(size, config.conv_L_cache, bias=bias)
        self.out_proj = Linear(size, size, bias=bias)
        self.state = State(layer_id, config.state_spec)

    def divide(self, shard: Shard) -> None:
        """Keep some of the channels."""
        if not shard.states:
            return
        size, ((start, stop), _) = self.out_proj.weight.shape[1], shard.heads(self.state.spec)
        self.in_proj.keep_rows(*((at + start, at + stop) for at in (0, size, 2 * size)))
        self.conv.keep((start, stop))
        self.out_proj.keep_columns((start, stop), shard)
        self.state.spec = shard.local(self.state.spec)

    def forward(self, x_TD: Tensor, rotation: Any, batch: Batch) -> Tensor:
        """As a decoder layer calls its attention. Nothing is rotated."""
        b_TD, c_TD, x_TD = self.in_proj(x_TD).chunk(3, -1)
        before_SPD = self.state.load(batch)["conv"]
        x_TD, after_SPD = self.conv(b_TD * x_TD, before_SPD, batch)
        self.state.store(batch, conv=after_SPD)
        y_TD: Tensor = self.out_proj(c_TD * x_TD)
        return y_TD


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)). The mixer is stored under its kind's name."""

    def __init__(self, config: Lfm2Config, layer_id: int, mlp: nn.Module) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.full = config.layer_types[layer_id] == FULL
        if self.full:
            self.self_attn = SelfAttention(
                layer_id,
                config.attention_spec(layer_id),
                size,
                head_norm=partial(RMSNorm, config.head_dim, eps),
                output="out_proj",
            )
        else:
            self.conv = ShortConv(config, layer_id)
        self.feed_forward = mlp
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(size, eps), RMSNorm(size, eps)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        mixer = self.self_attn if self.full else self.conv
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        x_TD, h_TD = self.post_attention_layernorm.after(x_TD, mixer(h_TD, rotation, batch))
        return x_TD, self.feed_forward(h_TD)


class Lfm2ForCausalLM(CausalLM):
    def __init__(self, config: Lfm2Config) -> None:
        super().__init__(Decoder.of(config, dense_layers(config)), tied=_tied(config))


class Lfm2MoeForCausalLM(CausalLM):
    def __init__(self, config: Lfm2MoeConfig) -> None:
        layers = (Layer(config, n, _sparse(config, n)) for n in range(config.num_hidden_layers))
        super().__init__(Decoder.of(config, layers), tied=_tied(config))


def dense_layers(config: Lfm2Config) -> Iterator[Layer]:
    """Build the decoder's layers, without experts."""
    return (Layer(config, n, _mlp(config)) for n in range(config.num_hidden_layers))


def _tied(config: Lfm2Config) -> bool:
    return config.tie_word_embeddings


def _mlp(config: Lfm2Config) -> nn.Module:
    return GatedMLP(config.hidden_size, config.intermediate_size, names=NAMES)


def _sparse(config: Lfm2MoeConfig, layer: int) -> nn.Module:
    if layer < config.num_dense_layers:
        return _mlp(config)
    routing = Routing(
        top_k=config.num_experts_per_tok,
        scoring="sigmoid",
        normalize=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
    )
    return MixtureOfExperts(
        config.num_experts,
        config.hidden_size,
        config.moe_intermediate_size,
        routing,
        correction=config.use_expert_bias,
        names=NAMES,
    )
