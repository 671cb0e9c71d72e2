"""The fields of `config.json` that Qwen2 reads, under its names."""

from __future__ import annotations

from attrs import frozen

from inferno.configs import SwitchedWindowConfig


@frozen(kw_only=True)
class Qwen2Config(SwitchedWindowConfig):
    max_position_embeddings: int = 32_768
