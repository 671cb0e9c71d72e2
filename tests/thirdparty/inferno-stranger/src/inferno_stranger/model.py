"""Suffixes: T packed tokens, D hidden, S sampled rows, V vocabulary."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from inferno.nn import Attention, Embedding, Linear, MergedLinear, TiedLMHead
from inferno.nn.batch import Batch
from inferno_stranger.config import PebbleConfig


class PebbleAttention(nn.Module):
    def __init__(self, config: PebbleConfig, layer: int) -> None:
        super().__init__()
        size = config.n_embd
        self.qkv = MergedLinear(size, bias=True, q=size, k=size, v=size)
        self.attention = Attention(layer, config.cache_specs()[layer])
        self.out = Linear(size, size, bias=True)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        y_TD: Tensor = self.out(self.attention(*self.qkv(x_TD), batch))
        return y_TD


class PebbleMLP(nn.Module):
    def __init__(self, config: PebbleConfig) -> None:
        super().__init__()
        self.up = Linear(config.n_embd, 4 * config.n_embd, bias=True)
        self.down = Linear(4 * config.n_embd, config.n_embd, bias=True)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.down(F.gelu(self.up(x_TD)))
        return y_TD


class PebbleLayer(nn.Module):
    def __init__(self, config: PebbleConfig, layer: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(config.n_embd)
        self.attn = PebbleAttention(config, layer)
        self.mlp = PebbleMLP(config)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        h_TD = self.ln(x_TD)
        y_TD: Tensor = x_TD + self.attn(h_TD, batch) + self.mlp(h_TD)
        return y_TD


class PebbleForCausalLM(nn.Module):
    def __init__(self, config: PebbleConfig) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.n_embd)
        self.wpe = Embedding(config.n_ctx, config.n_embd)
        self.h = nn.ModuleList(PebbleLayer(config, layer) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.head = TiedLMHead(self.wte)

    def forward(self, batch: Batch) -> Tensor:
        x_TD = self.wte(batch.token_ids_T) + self.wpe(batch.positions_T)
        for layer in self.h:
            x_TD = layer(x_TD, batch)
        y_TD: Tensor = self.ln_f(x_TD)
        return y_TD

    def logits(self, x_SD: Tensor) -> Tensor:
        y_SV: Tensor = self.head(x_SD)
        return y_SV
