from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.testing import ArchitectureTests, CachePolicyTests, randomize


class Layer(nn.Module):
    def __init__(self, size: int, heads: int, window: int | None, cap: float) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(size)
        self.attn = nn.ModuleDict({name: nn.Linear(size, size) for name in ("q", "k", "v", "out")})
        self.mlp = nn.ModuleDict(
            {"up": nn.Linear(size, 4 * size), "down": nn.Linear(4 * size, size)}
        )
        self.heads, self.window, self.cap = heads, window, cap

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln(x)
        q, k, v = (
            self.attn[n](h).unflatten(-1, (self.heads, -1)).transpose(0, 1) for n in ("q", "k", "v")
        )
        scores = self.cap * torch.tanh(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5 / self.cap)
        seen = torch.ones(len(x), len(x)).tril().bool()
        if self.window:
            seen &= ~seen.tril(-self.window)
        mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        return (
            x
            + self.attn["out"](mixed.transpose(0, 1).flatten(1))
            + self.mlp["down"](F.gelu(self.mlp["up"](h)))
        )


class Reference(nn.Module):
    """The paper's Pebble, as one would write it without a cache."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        size = config["n_embd"]
        self.wte, self.wpe = (
            nn.Embedding(config["vocab_size"], size),
            nn.Embedding(config["n_ctx"], size),
        )
        windows = [config["window"] if i % 2 else None for i in range(config["n_layer"])]
        self.h = nn.ModuleList(
            Layer(size, config["n_head"], window, config["score_cap"]) for window in windows
        )
        self.ln_f = nn.LayerNorm(size)

    def forward(self, token_ids: Tensor) -> SimpleNamespace:
        x = self.wte(token_ids[0]) + self.wpe(torch.arange(token_ids.shape[1]))
        for layer in self.h:
            x = layer(x)
        return SimpleNamespace(logits=(self.ln_f(x) @ self.wte.weight.T)[None])


class TestPebble(ArchitectureTests):
    config = {
        "architectures": ["PebbleForCausalLM"],
        "vocab_size": 96,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_ctx": 256,
        "window": 8,
        "score_cap": 2.0,
    }

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        model = Reference(cls.config)
        randomize(model)
        return model.eval()


class TestLoyal(CachePolicyTests):
    policy = "loyal"
