"""BERT (arXiv:1810.04805), and RoBERTa (arXiv:1907.11692), which differs in its positions.

Suffixes: T packed tokens, D hidden, X heads x head dim, I inner width, N pooled states.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.nn import (
    Attention,
    Embedding,
    Finalize,
    Layer,
    LayerNorm,
    Linear,
    LMHead,
    MergedLinear,
    TokenTypes,
)
from inferno.nn.batch import Batch
from inferno.ops import reference as ops
from inferno_bert.config import PADDING, BertConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # but for "gelu", which is an op
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


class Activation(Layer):
    """A function of each element, which may overwrite what it is given."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = None if name == "gelu" else ACTIVATIONS[name]
        self.ops = ops.TORCH

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.gelu(x) if self.function is None else self.function(x)


def no_logits(model: nn.Module, x_SD: Tensor) -> Tensor:
    """Stand in for `Model.logits`."""
    raise AssertionError("the engine refuses requests to generate with an encoder")


class Embeddings(nn.Module):
    """The sum of a token's, its position's and its type's embedding, normalized."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, size)
        self.position_embeddings = Embedding(config.num_positions, size)
        self.token_type_embeddings = Embedding(config.type_vocab_size, size)
        self.LayerNorm = LayerNorm(size, config.layer_norm_eps)
        self.positions = config.positions
        self.types = TokenTypes() if config.type_vocab_size > 1 else None

    def forward(self, batch: Batch) -> Tensor:
        ids_T = batch.token_ids_T
        types_T = ids_T.new_zeros(1) if self.types is None else self.types(batch)
        x_TD = self.word_embeddings(ids_T) + self.token_type_embeddings(types_T)
        positions_T = batch.positions_T
        if self.positions == "from padding":
            positions_T = after_padding(ids_T, positions_T)
        y_TD: Tensor = self.LayerNorm(x_TD, self.position_embeddings(positions_T))
        return y_TD


def after_padding(ids_T: Tensor, positions_T: Tensor) -> Tensor:
    """Return RoBERTa's positions, which count from the row of the padding token on, and leave out
    tokens that a text itself writes as padding."""
    is_pad_T = ids_T == PADDING
    count_T = is_pad_T.cumsum(0)
    first_T = torch.arange(len(ids_T), device=ids_T.device) - positions_T
    before_T = count_T - count_T[first_T] + is_pad_T[first_T]
    return torch.where(is_pad_T, PADDING, positions_T + PADDING + 1 - before_T)


class SelfAttention(nn.Module):
    def __init__(self, layer_id: int, config: BertConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.qkv = MergedLinear(size, bias=True, query=size, key=size, value=size)
        self.attention = Attention(layer_id, config.spec())

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        y_TX: Tensor = self.attention(*self.qkv(x_TD), batch)
        return y_TX


class Output(nn.Module):
    """norm(dense(x) + what the block read)."""

    def __init__(self, inputs: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(inputs, config.hidden_size, bias=True)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x_TI: Tensor, read_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.LayerNorm(self.dense(x_TI), read_TD)
        return y_TD


class AttentionBlock(nn.Module):
    def __init__(self, layer_id: int, config: BertConfig) -> None:
        super().__init__()
        self.self = SelfAttention(layer_id, config)
        self.output = Output(config.hidden_size, config)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        y_TD: Tensor = self.output(self.self(x_TD, batch), x_TD)
        return y_TD


class Intermediate(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size, bias=True)
        self.activation = Activation(config.hidden_act)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TI: Tensor = self.activation(self.dense(x_TD))
        return y_TI


class EncoderLayer(nn.Module):
    def __init__(self, layer_id: int, config: BertConfig) -> None:
        super().__init__()
        self.attention = AttentionBlock(layer_id, config)
        self.intermediate = Intermediate(config)
        self.output = Output(config.intermediate_size, config)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        x_TD = self.attention(x_TD, batch)
        y_TD: Tensor = self.output(self.intermediate(x_TD), x_TD)
        return y_TD


class Encoder(nn.Module):
    """Embeddings and layers (`contracts.Model`). It generates nothing."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = nn.Module()
        self.layers = [EncoderLayer(i, config) for i in range(config.num_hidden_layers)]
        self.encoder.layer = nn.ModuleList(self.layers)

    def forward(self, batch: Batch) -> Tensor:
        x_TD: Tensor = self.embeddings(batch)
        for layer in self.layers:
            x_TD = layer(x_TD, batch)
        return x_TD

    logits = no_logits


class Head(nn.Module):
    """The logits of labels, of the first token's state."""

    reads: ClassVar[str] = "first"

    def __init__(self, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size, bias=True)
        self.out_proj = LMHead(hidden_size, num_labels, bias=True)

    def forward(self, x_ND: Tensor) -> Tensor:
        y_NL: Tensor = self.out_proj(torch.tanh(self.dense(x_ND)))
        return y_NL


class Classifier(Encoder):
    """With a head for labels: one label makes a cross-encoder."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.score = Head(config.hidden_size, config.num_labels)
