"""Multi-token prediction of Qwen3-Next and Qwen3.5: layers of attention that read the embedding of
a later token beside a hidden state.

Suffixes: T packed tokens, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inferno.nn import CausalLM, Decoder, Linear, Rope
from inferno.nn.batch import Batch
from inferno_qwen3_next.config import Qwen3NextConfig
from inferno_qwen3_next.model import Layer, Norm


class MTPLayers(nn.Module):
    """The layers, stored under `mtp` (`contracts.MTP`). Embedding, rotary embedding and head are
    the model's."""

    def __init__(self, config: Qwen3NextConfig, model: CausalLM) -> None:
        super().__init__()
        decoder = model.model
        assert isinstance(decoder, Decoder), "these layers continue a Decoder"
        self._decoder = [decoder]  # in a list: it is not a child
        self.num_layers = config.num_nextn_predict_layers
        self.mtp = Predictor(config, len(config.cache_specs()))

    def forward(self, layer: int, x_TD: Tensor, batch: Batch) -> Tensor:
        """Tokens of images are embedded, and turn, as text does: what a decoder that sees reads of
        them is the step's, not this batch's."""
        [decoder] = self._decoder
        assert isinstance(decoder.rope, Rope)
        embedded_TD = Decoder.embed(decoder, batch.token_ids_T)
        rotation = Rope.forward(decoder.rope, batch)
        y_TD: Tensor = self.mtp(layer, x_TD, embedded_TD, rotation, batch)
        return y_TD


class Predictor(nn.Module):
    """All layers share what comes before and after them."""

    def __init__(self, config: Qwen3NextConfig, first: int) -> None:
        """`first` is the id of its first layer."""
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(size, eps), Norm(size, eps)
        self.fc = Linear(2 * size, size)
        self.layers = nn.ModuleList(
            Layer(config, first + n, mtp=n) for n in range(config.num_nextn_predict_layers)
        )
        self.norm = Norm(size, eps)

    def forward(
        self, layer: int, x_TD: Tensor, embedded_TD: Tensor, rotation: object, batch: Batch
    ) -> Tensor:
        """Return the normalized hidden states, whose logits predict the token after the embedded
        one."""
        parts = self.pre_fc_norm_embedding(embedded_TD), self.pre_fc_norm_hidden(x_TD)
        y_TD, delta_TD = self.layers[layer](self.fc(torch.cat(parts, -1)), None, rotation, batch)
        return self.norm.after(y_TD, delta_TD)[1]
