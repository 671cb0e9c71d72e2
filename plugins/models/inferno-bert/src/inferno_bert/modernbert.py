"""ModernBERT (arXiv:2412.13663): norms before the blocks, rotary positions, gated MLPs, and a
window in most layers.

Suffixes: T packed tokens, D hidden, X heads x head dim, C head dim, I inner width, N pooled states.
"""

from __future__ import annotations

from torch import Tensor, nn

from inferno.configs import FULL, SLIDING
from inferno.nn import Attention, Embedding, LayerNorm, Linear, LMHead, Rope, Rotation
from inferno.nn.batch import Batch
from inferno_bert.bert import Activation, no_logits
from inferno_bert.modernbert_config import ModernBertConfig


class Embeddings(nn.Module):
    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.tok_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, config.norm_eps, bias=config.norm_bias)

    def forward(self, batch: Batch) -> Tensor:
        y_TD: Tensor = self.norm(self.tok_embeddings(batch.token_ids_T))
        return y_TD


class SelfAttention(nn.Module):
    def __init__(self, layer_id: int, config: ModernBertConfig) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.attention_bias
        self.Wqkv = Linear(size, 3 * size, bias=bias)
        self.Wo = Linear(size, size, bias=bias)
        self.attention = Attention(layer_id, config.attention_spec(layer_id))

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        q_TX, k_TX, v_TX = self.Wqkv(x_TD).chunk(3, dim=-1)
        dim = self.attention.spec.head_dim
        q_TX, k_TX = (rotate(x.unflatten(-1, (-1, dim))).flatten(1) for x in (q_TX, k_TX))
        y_TD: Tensor = self.Wo(self.attention(q_TX, k_TX, v_TX, batch))
        return y_TD


class MLP(nn.Module):
    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.Wi = Linear(size, 2 * inner, bias=bias)
        self.Wo = Linear(inner, size, bias=bias)
        self.activation = Activation(config.hidden_activation)

    def forward(self, x_TD: Tensor) -> Tensor:
        x_TI, gate_TI = self.Wi(x_TD).chunk(2, dim=-1)
        y_TD: Tensor = self.Wo(self.activation(x_TI) * gate_TI)
        return y_TD


class EncoderLayer(nn.Module):
    def __init__(self, layer_id: int, config: ModernBertConfig) -> None:
        super().__init__()
        size, eps, bias = config.hidden_size, config.norm_eps, config.norm_bias
        self.attn_norm = LayerNorm(size, eps, bias=bias) if layer_id else None
        self.attn = SelfAttention(layer_id, config)
        self.mlp_norm = LayerNorm(size, eps, bias=bias)
        self.mlp = MLP(config)
        self.layer_type = config.layer_types[layer_id]

    def forward(self, x_TD: Tensor, rotations: dict[str, Rotation], batch: Batch) -> Tensor:
        h_TD = x_TD if self.attn_norm is None else self.attn_norm(x_TD)
        x_TD, h_TD = self.mlp_norm.after(x_TD, self.attn(h_TD, rotations[self.layer_type], batch))
        y_TD: Tensor = x_TD + self.mlp(h_TD)
        return y_TD


class Encoder(nn.Module):
    """Embeddings and layers (`contracts.Model`). It generates nothing."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(
            EncoderLayer(i, config) for i in range(config.num_hidden_layers)
        )
        self.final_norm = LayerNorm(config.hidden_size, config.norm_eps, bias=config.norm_bias)
        dim, positions = config.head_dim, config.max_position_embeddings
        self.full = Rope(dim, config.rope, max_position_embeddings=positions)
        self.sliding = Rope(dim, config.local_rope, max_position_embeddings=positions)

    def forward(self, batch: Batch) -> Tensor:
        x_TD: Tensor = self.embeddings(batch)
        rotations = {FULL: self.full(batch), SLIDING: self.sliding(batch)}
        for layer in self.layers:
            x_TD = layer(x_TD, rotations, batch)
        y_TD: Tensor = self.final_norm(x_TD)
        return y_TD

    logits = no_logits


class Head(nn.Module):
    """The logits of labels, of the first token's state or the mean of all."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.reads = "mean" if config.classifier_pooling == "mean" else "first"
        size = config.hidden_size
        self.dense = Linear(size, size, bias=config.classifier_bias)
        self.activation = Activation(config.classifier_activation)
        self.norm = LayerNorm(size, config.norm_eps, bias=config.norm_bias)
        self.out_proj = LMHead(size, config.num_labels, bias=True)

    def forward(self, x_ND: Tensor) -> Tensor:
        y_NL: Tensor = self.out_proj(self.norm(self.activation(self.dense(x_ND))))
        return y_NL


class Classifier(Encoder):
    """With a head for labels: one label makes a cross-encoder."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__(config)
        self.score = Head(config)
