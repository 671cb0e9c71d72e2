from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inferno.configs import check_positive, read_config
from inferno.contracts import AttentionSpec


@frozen(kw_only=True)
class PebbleConfig:
    vocab_size: int
    n_embd: int
    n_layer: int
    n_head: int
    n_ctx: int = 512
    window: int = 8
    score_cap: float = 20.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> PebbleConfig:
        read = read_config(cls, config)
        check_positive(
            n_embd=read.n_embd, n_layer=read.n_layer, n_head=read.n_head, window=read.window
        )
        return read

    @property
    def max_position_embeddings(self) -> int:
        return self.n_ctx

    def cache_specs(self) -> list[AttentionSpec]:
        head_dim = self.n_embd // self.n_head
        return [
            AttentionSpec(
                num_heads=self.n_head,
                num_kv_heads=self.n_head,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                sliding_window=self.window if layer % 2 else None,
                soft_cap=self.score_cap,
            )
            for layer in range(self.n_layer)
        ]
