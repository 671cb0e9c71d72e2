"""The fields of `config.json` that Qwen3 reads, under its names."""

from __future__ import annotations

from attrs import frozen

from inferno.configs import SwitchedWindowConfig


@frozen(kw_only=True)
class Qwen3Config(SwitchedWindowConfig):
    head_dim: int = 128
    max_position_embeddings: int = 32_768
    attention_bias: bool = False
