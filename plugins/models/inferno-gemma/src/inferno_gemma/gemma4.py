"""Gemma 4, text: head sizes and rotary embeddings per kind of layer, keys and values that the last
layers share, an input per layer, and in some models experts beside each MLP.

https://ai.google.dev/gemma/docs/core/model_card_4; reference: transformers/models/gemma4.

Suffixes: T packed tokens, D hidden, K experts of a token, L layers, P width of a layer's input.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from inferno.configs import FULL, SLIDING
from inferno.nn import (
    Attention,
    CausalLM,
    Experts,
    Finalize,
    GatedMLP,
    Layer,
    Linear,
    RMSNorm,
    Rope,
    RopeByKind,
    Router,
    Routing,
)
from inferno.nn.batch import Batch
from inferno.ops import reference as ops
from inferno_gemma.config4 import Gemma4Config
from inferno_gemma.sharing import (
    Given,
    MakeAttention,
    OthersKeys,
    OwnKeys,
    SharingDecoder,
    attentions,
    gelu_mul,
)


class Gemma4Router(Layer):
    """Selects experts by a normalized state, and weights them by a factor for each expert, too."""

    keep_fp32 = ("per_expert_scale",)

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        self.eps, self.ops = config.rms_norm_eps, ops.TORCH
        routing = Routing(top_k=config.top_k_experts, normalize=True)
        self.proj = Router(config.hidden_size, config.num_experts, routing)
        self.scale = nn.Parameter(torch.empty(config.hidden_size))
        self.per_expert_scale = nn.Parameter(torch.empty(config.num_experts))

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops
        self.scale = nn.Parameter(self.scale * len(self.scale) ** -0.5, requires_grad=False)

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        experts_TK, weights_TK = self.proj(self.ops.rms_norm(x_TD, self.scale, self.eps))
        return experts_TK, weights_TK * self.per_expert_scale[experts_TK]


class Gemma4DecoderLayer(nn.Module):
    def __init__(self, config: Gemma4Config, layer: int, self_attn: OwnKeys | OthersKeys) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        width = config.hidden_size_per_layer_input
        self.layer, self.self_attn = layer, self_attn
        self.mlp = GatedMLP(hidden, config.inner_size(layer), activation="gelu_tanh")
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden, eps)
        self.layer_scalar = nn.Parameter(torch.empty(1))
        self.takes_input, self.routes = width > 0, config.enable_moe_block
        if self.takes_input:
            self.per_layer_input_gate = Linear(hidden, width)
            self.per_layer_projection = Linear(width, hidden)
            self.post_per_layer_input_norm = RMSNorm(hidden, eps)
        if self.routes:
            self.router = Gemma4Router(config)
            self.experts = Experts(
                config.num_experts, hidden, config.moe_intermediate_size, gated=gelu_mul
            )
            self.post_feedforward_layernorm_1 = RMSNorm(hidden, eps)
            self.post_feedforward_layernorm_2 = RMSNorm(hidden, eps)
            self.pre_feedforward_layernorm_2 = RMSNorm(hidden, eps)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, given: Given, batch: Batch
    ) -> tuple[Tensor, None]:
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        h_TD = self.post_attention_layernorm(self.self_attn(h_TD, given, batch))
        x_TD, h_TD = self.pre_feedforward_layernorm.after(x_TD, h_TD)
        h_TD = self.mlp(h_TD)
        if self.routes:
            routed_TD = self.experts(self.pre_feedforward_layernorm_2(x_TD), *self.router(x_TD))
            h_TD = self.post_feedforward_layernorm_1(h_TD)
            h_TD = h_TD + self.post_feedforward_layernorm_2(routed_TD)
        x_TD = x_TD + self.post_feedforward_layernorm(h_TD)
        if self.takes_input:
            assert given.inputs_TLP is not None, "the decoder makes them for every layer"
            h_TP = gelu_mul(self.per_layer_input_gate(x_TD), given.inputs_TLP[:, self.layer])
            x_TD = x_TD + self.post_per_layer_input_norm(self.per_layer_projection(h_TP))
        return x_TD * self.layer_scalar, None


class Gemma4ForCausalLM(CausalLM):
    def __init__(
        self,
        config: Gemma4Config,
        *,
        attention: MakeAttention = Attention,
        decoder: Callable[..., SharingDecoder] = SharingDecoder.of,
    ) -> None:
        """`attention` makes what attends in each layer, `decoder` the model without its head."""
        longest = config.max_position_embeddings
        ropes = {
            FULL: Rope(config.global_head_dim, config.rope, max_position_embeddings=longest),
            SLIDING: Rope(config.head_dim, config.local_rope, max_position_embeddings=longest),
        }
        each = enumerate(attentions(config, attention))
        made = decoder(
            config,
            [Gemma4DecoderLayer(config, number, attends) for number, attends in each],
            rope=RopeByKind(ropes),
            embedding_scale=config.hidden_size**0.5,
            width=config.hidden_size_per_layer_input,
            known=config.vocab_size_per_layer_input,
        )
        super().__init__(
            made, tied=config.tie_word_embeddings, soft_cap=config.final_logit_softcapping
        )
