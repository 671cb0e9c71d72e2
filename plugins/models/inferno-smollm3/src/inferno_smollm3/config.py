"""The fields of `config.json` that SmolLM3 reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import WindowedConfig, check_positive, read_config
from inferno.errors import CheckpointError

_THETA = 2_000_000.0
"""The rotary base if `config.json` omits it."""


@frozen(kw_only=True)
class SmolLM3Config(WindowedConfig):
    num_key_value_heads: int = 4
    max_position_embeddings: int = 32_768
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    no_rope_layers: tuple[int, ...] = ()
    """For each layer, despite the name: 1 if it is rotated, 0 if it knows nothing of positions.
    Left out, every n-th is not."""
    no_rope_layer_interval: int = 4
    """That n."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        given = read_config(cls, config)
        check_positive(no_rope_layer_interval=given.no_rope_layer_interval)
        interval, layers = given.no_rope_layer_interval, range(given.num_hidden_layers)
        rotated = given.no_rope_layers or tuple(int((n + 1) % interval > 0) for n in layers)
        if len(rotated) != len(layers) or not set(rotated) <= {0, 1}:
            raise CheckpointError(
                f"config.json: no_rope_layers is {list(rotated)}",
                f"It must have {len(layers)} entries: 1 for layers that are rotated, else 0.",
            )
        theta = config.get("rope_theta")
        read = {
            **config,
            "no_rope_layers": rotated,
            "rope_theta": _THETA if theta is None else theta,
            "sliding_window": given.sliding_window if config.get("use_sliding_window") else None,
        }
        return super().from_json(read)

    def slides(self, layer: int) -> bool:
        return self.sliding_window is not None and not self.no_rope_layers[layer]
