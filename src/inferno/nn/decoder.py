"""The structure that most decoders share: embedding, layers, final norm, head.

Layers pass on the residual stream x and, separately, the delta still to be added to it: one
operator adds it and normalizes the sum.

Suffixes: T packed tokens, D hidden, S sampled rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from inferno.configs import DecoderConfig
from inferno.contracts import LayerSpan, Shard
from inferno.nn.batch import Batch
from inferno.nn.constant_keys import Pairs
from inferno.nn.embedding import Embedding, LMHead, TiedLMHead
from inferno.nn.layer import Finalize, Layer
from inferno.nn.norm import RMSNorm
from inferno.nn.pipeline import WHOLE, Absent, Edges, keep_layers, present
from inferno.nn.rope import Rope, RopeByKind
from inferno.nn.self_attention import SelfAttention

Norm = Callable[[int, float], Any]
"""(size, eps) -> `RMSNorm` or `LayerNorm`, or a class with their interface."""


class DecoderLayer(nn.Module):
    """x + self_attn(norm(x)), then x + mlp(norm(x)). `self_attn` is called with (x_TD, rotation,
    batch)."""

    def __init__(
        self,
        self_attn: nn.Module,
        mlp: nn.Module,
        *,
        hidden_size: int,
        eps: float,
        norm: Norm = RMSNorm,
        mlp_name: str = "mlp",
    ) -> None:
        """`mlp_name` is the MLP's name in checkpoints."""
        super().__init__()
        self.self_attn, self.mlp_name = self_attn, mlp_name
        self.add_module(mlp_name, mlp)
        self.input_layernorm = norm(hidden_size, eps)
        self.post_attention_layernorm = norm(hidden_size, eps)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        x_TD, h_TD = self.post_attention_layernorm.after(
            x_TD, self.self_attn(h_TD, rotation, batch)
        )
        y_TD: Tensor = getattr(self, self.mlp_name)(h_TD)
        return x_TD, y_TD


class ParallelDecoderLayer(nn.Module):
    """x + self_attn(norm(x)) + mlp(norm(x)): one norm, and neither block sees the other's
    result."""

    def __init__(
        self,
        self_attn: nn.Module,
        mlp: nn.Module,
        *,
        hidden_size: int,
        eps: float,
        norm: Norm = RMSNorm,
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self.input_layernorm = norm(hidden_size, eps)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        return x_TD, self.self_attn(h_TD, rotation, batch) + self.mlp(h_TD)


class SandwichDecoderLayer(nn.Module):
    """x + norm(self_attn(norm(x))), then x + norm(mlp(norm(x))). `norms` are the norms' names, in
    that order."""

    def __init__(
        self,
        self_attn: nn.Module,
        mlp: nn.Module,
        *,
        hidden_size: int,
        eps: float,
        norms: tuple[str, str, str, str],
        norm: Norm = RMSNorm,
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self.norms = norms
        for name in norms:
            self.add_module(name, norm(hidden_size, eps))

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        before_attention, after_attention, before_mlp, after_mlp = (
            getattr(self, name) for name in self.norms
        )
        x_TD, h_TD = before_attention.after(x_TD, delta_TD)
        x_TD, h_TD = before_mlp.after(x_TD, after_attention(self.self_attn(h_TD, rotation, batch)))
        return x_TD, after_mlp(self.mlp(h_TD))


class PostNormDecoderLayer(nn.Module):
    """x + norm(self_attn(x)), then x + norm(mlp(x)): what is added is normalized, what is read is
    not."""

    def __init__(
        self, self_attn: nn.Module, mlp: nn.Module, *, hidden_size: int, eps: float
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden_size, eps)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        x_TD = x_TD if delta_TD is None else x_TD + delta_TD
        x_TD = x_TD + self.post_attention_layernorm(self.self_attn(x_TD, rotation, batch))
        return x_TD, self.post_feedforward_layernorm(self.mlp(x_TD))


class Decoder(Layer):
    """Embedding, layers, norm. `rope` is called once per step; every layer is given its result."""

    def __init__(
        self,
        layers: Iterable[nn.Module],
        rope: nn.Module,
        *,
        vocab_size: int,
        hidden_size: int,
        eps: float,
        norm: Norm = RMSNorm,
        norm_name: str = "norm",
        embedding_scale: float = 1.0,
    ) -> None:
        """`norm_name` is the final norm's name in checkpoints."""
        super().__init__()
        self.embed_tokens = Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm_name = norm_name
        self.add_module(norm_name, norm(hidden_size, eps))
        self.rope = rope
        self.embedding_scale = embedding_scale
        self.edges = WHOLE

    @classmethod
    def of(
        cls,
        config: DecoderConfig,
        layers: Iterable[nn.Module],
        *,
        rope: nn.Module | None = None,
        interleaved: bool = False,
        eps: float | None = None,
        norm: Norm = RMSNorm,
        norm_name: str = "norm",
        embedding_scale: float = 1.0,
        **more: Any,
    ) -> Self:
        """Build a decoder with the config's sizes. By default `rope` is one rotary embedding, with
        pairs of adjacent elements if `interleaved`, and `eps` is `rms_norm_eps`. `more` are
        arguments of a subclass."""
        rope = rope or Rope(
            config.head_dim,
            config.rope,
            max_position_embeddings=config.max_position_embeddings,
            interleaved=interleaved,
        )
        return cls(
            layers,
            rope,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps if eps is None else eps,
            norm=norm,
            norm_name=norm_name,
            embedding_scale=embedding_scale,
            **more,
        )

    def keep_layers(self, span: LayerSpan, edges: Edges) -> None:
        """Keep a pipeline stage's layers (`nn.Staged`)."""
        self.edges = edges
        keep_layers(self.layers, span)
        if not span.ends:
            setattr(self, self.norm_name, Absent())

    def finalize(self, to: Finalize) -> None:
        for layer in self.layers:
            attention = next((m for m in layer.modules() if isinstance(m, SelfAttention)), None)
            need = None if attention is None else to.need(attention.attention.layer_id)
            if attention is None or need is None or not need.waves:
                continue
            rope = self.rope
            rope = rope.kinds[attention.kind] if isinstance(rope, RopeByKind) else rope
            if isinstance(rope, Rope) and not rope.by_index:
                continue  # a constant part of the keys would turn by each token's own position
            pairs = Pairs(0, False)
            if isinstance(rope, Rope):
                pairs = Pairs(rope.rotated // 2, rope.interleaved)
            device = next((each.device for each in layer.parameters()), None)
            inputs_D = torch.ones(attention.hidden_size, device=device)
            norm: Any = getattr(layer, "input_layernorm", None)
            if norm is not None:
                inputs_D *= norm.weight.float() + norm.offset
            adds_biases = attention.fit_keys(pairs, inputs_D, integers=need.cache_dtype == "int8")
            if isinstance(rope, Rope):
                rope.wants_lines |= adds_biases

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """Return the tokens' embeddings, the input of the first layer."""
        x_TD: Tensor = self.embed_tokens(token_ids_T)
        if self.embedding_scale != 1.0:  # rounded to the compute dtype first, as in training
            x_TD = x_TD * x_TD.new_full((), self.embedding_scale)
        return x_TD

    def forward(self, batch: Batch) -> Tensor:
        x_TD = self.edges.begin(self.embed, batch.token_ids_T)
        rotation = self.rope(batch)
        delta_TD: Tensor | None = None
        for layer in present(self.layers):
            x_TD, delta_TD = layer(x_TD, delta_TD, rotation, batch)
        return self.edges.end(self._normalized, x_TD, delta_TD)

    def _normalized(self, x_TD: Tensor, delta_TD: Tensor | None) -> Tensor:
        y_TD: Tensor = getattr(self, self.norm_name).after(x_TD, delta_TD)[1]
        return y_TD


def with_score(build: Callable[[Any], nn.Module], config: DecoderConfig) -> nn.Module:
    """Build a decoder with the head of a sequence classifier under `score`."""
    model = build(config)
    model.score = LMHead(config.hidden_size, config.num_labels)
    return model


class CausalLM(nn.Module):
    """A decoder under `model` and its head under `lm_head`, tied to the embedding or separate
    (`contracts.Model`)."""

    def __init__(
        self,
        model: nn.Module,
        *,
        tied: bool,
        bias: bool = False,
        soft_cap: float | None = None,
        names: tuple[str, str] = ("model", "embed_tokens"),
    ) -> None:
        """With a `soft_cap`, logits become cap · tanh(logit / cap). `names` are those of the
        decoder and, in it, of its embedding in checkpoints."""
        super().__init__()
        self.name, self.embedding_name = names
        self.add_module(self.name, model)
        self.edges = WHOLE
        self.soft_cap = soft_cap
        embedding = getattr(model, self.embedding_name)
        assert isinstance(embedding, Embedding), "a decoder has an Embedding"
        vocab_size, hidden_size = embedding.weight.shape
        self.lm_head: nn.Module = (
            TiedLMHead(embedding) if tied else LMHead(hidden_size, vocab_size, bias=bias)
        )

    def divide(self, shard: Shard) -> None:
        """Compute the logits of some tokens."""
        if isinstance(self.lm_head, LMHead):
            self.lm_head.keep_outputs(shard, 1)

    def keep_layers(self, span: LayerSpan, edges: Edges) -> None:
        """Keep a pipeline stage's layers (`nn.Staged`); the first stage has the embedding, the last
        one the heads, and with a tied one or multi-token prediction the embedding too."""
        decoder, tied = getattr(self, self.name), isinstance(self.lm_head, TiedLMHead)
        decoder.keep_layers(span, edges)
        self.edges = edges
        if not (span.begins or span.predicts or (span.ends and tied)):
            setattr(decoder, self.embedding_name, Absent())
        if not span.ends:
            self.lm_head = nn.Identity()  # what it would draw from, nobody reads
            if hasattr(self, "score"):
                self.score = Absent()

    def forward(self, batch: Batch) -> Tensor:
        x_TD: Tensor = getattr(self, self.name)(batch)
        return x_TD

    def logits(self, x_SD: Tensor) -> Tensor:
        y_SV: Tensor = self.lm_head(x_SD)
        if self.soft_cap is not None:
            y_SV = self.soft_cap * torch.tanh(y_SV / self.soft_cap)
        return y_SV
