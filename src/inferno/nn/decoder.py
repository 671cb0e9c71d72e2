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
    """x + self_attn(norm(x)), then x + mlp(norm(x)). `self_attn` is called with (x_TD, rotation, batch).

    Layers hand on the residual stream x and, beside it, the delta that is still to be added: adding it and norming the sum is
    one operator.
    """

    def __init__(self, self_attn: nn.Module, mlp: nn.Module, *, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self.input_layernorm = RMSNorm(hidden_size, eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotate: Rotation, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        x_TD, h_TD = self.post_attention_layernorm.after(x_TD, self.self_attn(h_TD, rotate, batch))
        return x_TD, self.mlp(h_TD)


class Decoder(nn.Module):
    """Embedding, layers (see `DecoderLayer`), norm. One rotary table serves all layers."""

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
        rotate = self.rope(batch)
        delta_TD: Tensor | None = None
        for layer in self.layers:
            x_TD, delta_TD = layer(x_TD, delta_TD, rotate, batch)
        return self.norm.after(x_TD, delta_TD)[1]


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
