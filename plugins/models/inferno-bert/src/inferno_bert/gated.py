"""NomicBERT (arXiv:2402.01613) and GTE (arXiv:2407.19669): BERT with rotary positions and gated
MLPs.

Suffixes: T packed tokens, D hidden, X heads x head dim, I inner width.
"""

from __future__ import annotations

from torch import Tensor, nn

from inferno.nn import (
    Attention,
    Embedding,
    LayerNorm,
    Linear,
    MergedLinear,
    Rope,
    Rotation,
    TokenTypes,
)
from inferno.nn.batch import Batch
from inferno_bert.bert import Activation, Head, no_logits
from inferno_bert.gated_config import GatedConfig


class Embeddings(nn.Module):
    """The sum of a token's and its type's embedding, normalized."""

    def __init__(self, config: GatedConfig) -> None:
        super().__init__()
        size, types = config.hidden_size, config.type_vocab_size
        self.word_embeddings = Embedding(config.vocab_size, size)
        self.token_type_embeddings = Embedding(types, size) if types else None
        self.types = TokenTypes() if types > 1 else None
        self.LayerNorm = LayerNorm(size, config.layer_norm_eps)

    def forward(self, batch: Batch) -> Tensor:
        ids_T = batch.token_ids_T
        x_TD = self.word_embeddings(ids_T)
        if self.token_type_embeddings is not None:
            types_T = ids_T.new_zeros(1) if self.types is None else self.types(batch)
            x_TD = x_TD + self.token_type_embeddings(types_T)
        y_TD: Tensor = self.LayerNorm(x_TD)
        return y_TD


class SelfAttention(nn.Module):
    def __init__(self, layer_id: int, config: GatedConfig) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.attention_bias
        self.fused = config.fused_qkv
        if self.fused:
            self.qkv_proj = Linear(size, 3 * size, bias=bias)
        else:
            self.qkv = MergedLinear(size, bias=bias, q_proj=size, k_proj=size, v_proj=size)
        self.o_proj = Linear(size, size, bias=bias)
        self.attention = Attention(layer_id, config.spec())

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        q_TX, k_TX, v_TX = self.qkv_proj(x_TD).chunk(3, dim=-1) if self.fused else self.qkv(x_TD)
        dim = self.attention.spec.head_dim
        q_TX, k_TX = (rotate(x.unflatten(-1, (-1, dim))).flatten(1) for x in (q_TX, k_TX))
        y_TD: Tensor = self.o_proj(self.attention(q_TX, k_TX, v_TX, batch))
        return y_TD


class MLP(nn.Module):
    """down(act(gate(x)) · up(x))"""

    def __init__(self, config: GatedConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.fused = config.fused_mlp
        if self.fused:
            self.up_gate_proj = Linear(size, 2 * inner)
        else:
            self.up_gate = MergedLinear(size, up_proj=inner, gate_proj=inner)
        self.down_proj = Linear(inner, size, bias=config.mlp_bias)
        self.activation = Activation(config.hidden_act)

    def forward(self, x_TD: Tensor) -> Tensor:
        up_TI, gate_TI = (
            self.up_gate_proj(x_TD).chunk(2, dim=-1) if self.fused else self.up_gate(x_TD)
        )
        y_TD: Tensor = self.down_proj(self.activation(gate_TI) * up_TI)
        return y_TD


class EncoderLayer(nn.Module):
    def __init__(self, layer_id: int, config: GatedConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self.self_attn = SelfAttention(layer_id, config)
        self.post_attention_layernorm = LayerNorm(size, eps)
        self.mlp = MLP(config)
        self.post_mlp_layernorm = LayerNorm(size, eps)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        x_TD = self.post_attention_layernorm(self.self_attn(x_TD, rotate, batch), x_TD)
        y_TD: Tensor = self.post_mlp_layernorm(self.mlp(x_TD), x_TD)
        return y_TD


class Encoder(nn.Module):
    """Embeddings and layers (`contracts.Model`). It generates nothing."""

    def __init__(self, config: GatedConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(
            EncoderLayer(i, config) for i in range(config.num_hidden_layers)
        )
        positions = config.max_position_embeddings
        self.rope = Rope(config.spec().head_dim, config.rope, max_position_embeddings=positions)

    def forward(self, batch: Batch) -> Tensor:
        x_TD: Tensor = self.embeddings(batch)
        rotate = self.rope(batch)
        for layer in self.layers:
            x_TD = layer(x_TD, rotate, batch)
        return x_TD

    logits = no_logits


class Classifier(Encoder):
    """With a head for labels: one label makes a cross-encoder."""

    def __init__(self, config: GatedConfig) -> None:
        super().__init__(config)
        self.score = Head(config.hidden_size, config.num_labels)
