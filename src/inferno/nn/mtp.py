"""Multi-token prediction: layers after the decoder's that predict further tokens (DeepSeek-V3,
arXiv:2412.19437, section 2.2).

Suffixes: T packed tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from inferno.nn.batch import Batch
from inferno.nn.decoder import CausalLM, Decoder, DecoderLayer
from inferno.nn.linear import Linear
from inferno.nn.norm import RMSNorm


class MTPLayer(DecoderLayer):
    """A decoder layer over a projection of two vectors: the embedding of a later token, and the
    hidden state of the layer before it. Parameters are named as DeepSeek's checkpoints do."""

    def __init__(
        self, self_attn: nn.Module, mlp: nn.Module, *, hidden_size: int, eps: float
    ) -> None:
        super().__init__(self_attn, mlp, hidden_size=hidden_size, eps=eps)
        self.enorm, self.hnorm = RMSNorm(hidden_size, eps), RMSNorm(hidden_size, eps)
        self.eh_proj = Linear(2 * hidden_size, hidden_size)
        self.shared_head = nn.ModuleDict({"norm": RMSNorm(hidden_size, eps)})

    def projection_input(self, x_TD: Tensor, embedded_TD: Tensor) -> Tensor:
        """Return what the projection reads from the hidden states and the embedded tokens."""
        return torch.cat([self.enorm(embedded_TD), self.hnorm(x_TD)], dim=-1)

    def predict(self, x_TD: Tensor, embedded_TD: Tensor, rotation: Any, batch: Batch) -> Tensor:
        """Return the normalized hidden states, whose logits predict the token after the embedded
        one."""
        both_TX = self.projection_input(x_TD, embedded_TD)
        x_TD, delta_TD = self(self.eh_proj(both_TX), None, rotation, batch)
        norm = self.shared_head["norm"]
        assert isinstance(norm, RMSNorm)
        return norm.after(x_TD, delta_TD)[1]


class MTPLayers(nn.Module):
    """The multi-token-prediction layers of a model (`contracts.MTP`), stored under the numbers
    after its last layer. Embedding, rotary embedding and head are the model's: the copies that some
    checkpoints store are not read."""

    def __init__(self, model: CausalLM, layers: Iterable[MTPLayer]) -> None:
        super().__init__()
        decoder = model.model
        assert isinstance(decoder, Decoder), "these layers continue a Decoder"
        self._layers, self._decoder = list(layers), [decoder]  # a list: the decoder is not a child
        self.num_layers, first = len(self._layers), len(decoder.layers)
        stored = {str(first + i): layer for i, layer in enumerate(self._layers)}
        self.model = nn.ModuleDict({"layers": nn.ModuleDict(stored)})

    def forward(self, layer: int, x_TD: Tensor, batch: Batch) -> Tensor:
        [decoder] = self._decoder
        embedded_TD = decoder.embed(batch.token_ids_T)
        return self._layers[layer].predict(x_TD, embedded_TD, decoder.rope(batch), batch)
