"""The fields of `config.json` that EXAONE 4 reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import FULL, SLIDING, WindowedConfig, read_config
from inferno.errors import CheckpointError

_WINDOW = 4096
"""The window if `config.json` omits it; null means none."""


@frozen(kw_only=True)
class Exaone4Config(WindowedConfig):
    """EXAONE 4: with a window, layers that have none are not rotated."""

    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        given = read_config(cls, config)
        window = config.get("sliding_window", _WINDOW)
        types = given.layer_types or tuple(
            SLIDING if window is not None and slides else FULL
            for slides in _pattern(config, given.num_hidden_layers)
        )
        return super().from_json({**config, "sliding_window": window, "layer_types": types})

    def rotates(self, layer: int) -> bool:
        return self.sliding_window is None or self.layer_types[layer] == SLIDING


def _pattern(config: Mapping[str, Any], layers: int) -> list[bool]:
    """Return which layers have a window: all but every n-th, or by letters that repeat, "LLLG"."""
    pattern = config.get("sliding_window_pattern", 4)
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return [pattern[layer % len(pattern)] == "L" for layer in range(layers)]
    if type(pattern) is int and pattern > 0:
        return [(layer + 1) % pattern > 0 for layer in range(layers)]
    if config.get("sliding_window", _WINDOW) is None:
        return [False] * layers
    raise CheckpointError(
        f"config.json: sliding_window_pattern is {pattern!r}",
        "It must be a number of layers, or letters: L for those with a window, G for others.",
    )
