"""The frame that most decoders share: embed, a row of pre-norm layers, a last norm, a head.

Suffixes: T packed tokens, D hidden, S sampled rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from inferno.batch import Batch
from inferno.nn.embedding import Embedding, LMHead, TiedLMHead
from inferno.nn.norm import RMSNorm
from inferno.nn.rope import Rope, Rotation


class DecoderLayer(nn.Module):
    """x + self_attn(norm(x)), then x + mlp(norm(x)). `self_attn` is called with (x_TD, rotation, batch)."""

    def __init__(self, self_attn: nn.Module, mlp: nn.Module, *, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self.input_layernorm = RMSNorm(hidden_size, eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        x_TD = x_TD + self.self_attn(self.input_layernorm(x_TD), rotate, batch)
        y_TD: Tensor = x_TD + self.mlp(self.post_attention_layernorm(x_TD))
        return y_TD


class Decoder(nn.Module):
    """Embedding, layers, norm. One rotary table serves all layers."""

    def __init__(
        self, layers: Iterable[nn.Module], rope: Rope, *, vocab_size: int, hidden_size: int, eps: float
    ) -> None:
        super().__init__()
        self.embed_tokens = Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(hidden_size, eps)
        self.rope = rope

    def forward(self, batch: Batch) -> Tensor:
        x_TD = self.embed_tokens(batch.token_ids_T)
        rotate = self.rope(batch.positions_T)
        for layer in self.layers:
            x_TD = layer(x_TD, rotate, batch)
        y_TD: Tensor = self.norm(x_TD)
        return y_TD


class CausalLM(nn.Module):
    """A decoder under `model` and its head under `lm_head`, tied to the embedding or its own (`contracts.Model`)."""

    def __init__(self, model: Decoder, *, vocab_size: int, hidden_size: int, tied: bool) -> None:
        super().__init__()
        self.model = model
        self.lm_head = TiedLMHead(model.embed_tokens) if tied else LMHead(hidden_size, vocab_size)

    def forward(self, batch: Batch) -> Tensor:
        x_TD: Tensor = self.model(batch)
        return x_TD

    def logits(self, x_SD: Tensor) -> Tensor:
        y_SV: Tensor = self.lm_head(x_SD)
        return y_SV
