"""Rotary position embeddings as `config.json` describes them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from attrs.validators import deep_iterable, ge, gt, in_, le, optional

from inferno.configs.reader import read_config
from inferno.errors import CheckpointError

_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")


@frozen(kw_only=True)
class RopeConfig:
    """Rotary position embedding: its base, and its extension past the trained context.

    The fields are those of transformers' `rope_parameters`; yarn is arXiv:2309.00071, longrope
    arXiv:2402.13753. With "proportional", pairs span the whole head, those of the first
    `partial_rotary_factor` turn at the frequencies of a head that turns whole, and the rest do not.
    """

    rope_type: str = field(default="default", validator=in_(_TYPES))
    rope_theta: float = field(default=10_000.0, validator=gt(0))
    factor: float = field(default=1.0, validator=gt(0))
    original_max_position_embeddings: int | None = field(default=None, validator=optional(ge(2)))
    partial_rotary_factor: float = field(default=1.0, validator=[gt(0), le(1)])
    # yarn
    beta_fast: float = field(default=32.0, validator=gt(0))
    beta_slow: float = field(default=1.0, validator=gt(0))
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    # yarn, longrope
    attention_factor: float | None = None
    # llama3
    low_freq_factor: float = 1.0
    high_freq_factor: float = field(default=4.0)
    # longrope
    short_factor: tuple[float, ...] = field(default=(), validator=deep_iterable(gt(0)))
    long_factor: tuple[float, ...] = field(default=(), validator=deep_iterable(gt(0)))
    # yarn of Ministral 3: queries are multiplied by a factor (`nn.QueryScalingRope`)
    llama_4_scaling_beta: float = field(default=0.0, validator=ge(0))

    @rope_theta.validator
    def _above_1_for_yarn(self, attribute: object, theta: float) -> None:
        if self.rope_type == "yarn" and theta <= 1:
            raise ValueError(f"'rope_theta' must be > 1 for yarn: {theta}")

    @high_freq_factor.validator
    def _above_low_freq_factor(self, attribute: object, high: float) -> None:
        if high <= self.low_freq_factor:
            raise ValueError(
                f"'high_freq_factor' must be > low_freq_factor {self.low_freq_factor}: {high}"
            )

    @classmethod
    def from_json(
        cls,
        config: Mapping[str, Any],
        *,
        theta: float = 10_000.0,
        layer_type: str = "full_attention",
    ) -> RopeConfig:
        """Parse `rope_parameters`, or the older `rope_theta` and `rope_scaling`. `theta` is the
        base if neither gives one. If there are settings per layer type, those of `layer_type` are
        used."""
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        scaling = scaling.get(layer_type, scaling) if isinstance(scaling, Mapping) else scaling
        if not isinstance(scaling, Mapping):
            raise CheckpointError(
                f"config.json: rope_scaling is {scaling!r}", "It must be an object or null."
            )
        given = config.get("rope_theta")
        merged = {"rope_theta": theta if given is None else given, **scaling}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        # With "mrope", parts of a head turn by an image's rows and columns: of text, all are alike.
        merged["rope_type"] = "default" if kind == "mrope" else kind
        merged.setdefault("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
        return read_config(cls, {k: v for k, v in merged.items() if v is not None})

    def outgrown(self, max_position_embeddings: int, max_model_len: int) -> int | None:
        """Return the original context length if contexts of `max_model_len` tokens exceed it and
        longrope has other factors for them, else None."""
        original = self.original_max_position_embeddings or max_position_embeddings
        same = self.rope_type != "longrope" or self.short_factor == self.long_factor
        return None if same or max_model_len <= original else original

    def check_width(self, head_dim: int) -> None:
        """Raise CheckpointError unless `head_dim` gives an even rotary dimension, with one longrope
        factor per pair."""
        rotated = int(head_dim * self.partial_rotary_factor)
        if rotated < 2 or rotated % 2:
            raise CheckpointError(
                f"config.json: the rotary dimension is {rotated} of head_dim {head_dim}",
                "It must be even and at least 2: check head_dim and partial_rotary_factor.",
            )
        for name in ("short_factor", "long_factor") if self.rope_type == "longrope" else ():
            if (count := len(getattr(self, name))) != rotated // 2:
                raise CheckpointError(
                    f"config.json: {name} has {count} elements",
                    f"It must have {rotated // 2}, one for each rotated pair.",
                )
