"""Rotary position embeddings as `config.json` describes them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inferno.configs.reader import read_config
from inferno.errors import CheckpointError


@frozen(kw_only=True)
class RopeConfig:
    """Rotary position embedding: its base, and how it is stretched past the trained context.

    `rope_type` is one of default, linear, dynamic, yarn (arXiv:2309.00071), llama3, longrope
    (arXiv:2402.13753); fields as in transformers' `rope_parameters`.
    """

    rope_type: str = "default"
    rope_theta: float = 10_000.0
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0
    # yarn
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    # yarn, longrope
    attention_factor: float | None = None
    # llama3
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    # longrope
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @classmethod
    def from_json(
        cls,
        config: Mapping[str, Any],
        *,
        theta: float = 10_000.0,
        layer_type: str = "full_attention",
    ) -> RopeConfig:
        """From `rope_parameters`, or the older `rope_theta` + `rope_scaling`; `theta` where neither
        names a base. Where there is one for each type of layer, it is that of `layer_type`."""
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        scaling = scaling.get(layer_type, scaling) if isinstance(scaling, Mapping) else scaling
        if not isinstance(scaling, Mapping):
            raise CheckpointError(
                f"config.json: rope_scaling is {scaling!r}", "It must be an object or null."
            )
        given = config.get("rope_theta")
        merged = {"rope_theta": theta if given is None else given, **scaling}
        merged["rope_type"] = scaling.get("rope_type") or scaling.get("type") or "default"
        merged.setdefault("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
        rope = read_config(cls, {k: v for k, v in merged.items() if v is not None})
        known = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
        if rope.rope_type not in known:
            raise CheckpointError(
                f"config.json: rope_type {rope.rope_type!r} is not known",
                f"Known: {', '.join(known)}.",
            )
        for name, wrong, must in (
            (
                "rope_theta",
                rope.rope_theta <= (rope.rope_type == "yarn"),
                "above 0, for yarn above 1",
            ),
            ("factor", rope.factor <= 0, "above 0"),
            (
                "original_max_position_embeddings",
                (rope.original_max_position_embeddings or 2) < 2,
                "at least 2",
            ),
            (
                "partial_rotary_factor",
                not 0 < rope.partial_rotary_factor <= 1,
                "above 0 and at most 1",
            ),
            ("beta_fast", rope.beta_fast <= 0, "above 0"),
            ("beta_slow", rope.beta_slow <= 0, "above 0"),
            (
                "high_freq_factor",
                rope.high_freq_factor <= rope.low_freq_factor,
                "above low_freq_factor",
            ),
            ("short_factor", min(rope.short_factor, default=1.0) <= 0, "above 0, every one"),
            ("long_factor", min(rope.long_factor, default=1.0) <= 0, "above 0, every one"),
        ):
            if wrong:
                raise CheckpointError(
                    f"config.json: {name} is {getattr(rope, name)}", f"It must be {must}."
                )
        return rope

    def check_width(self, head_dim: int) -> None:
        """Raises CheckpointError unless heads so wide can be turned: by whole pairs, longrope by a
        factor for each."""
        turned = int(head_dim * self.partial_rotary_factor)
        if turned < 2 or turned % 2:
            raise CheckpointError(
                f"config.json: {turned} numbers of a head of {head_dim} are to rotate",
                "They rotate in pairs: check head_dim and partial_rotary_factor.",
            )
        for name in ("short_factor", "long_factor") if self.rope_type == "longrope" else ():
            if (count := len(getattr(self, name))) != turned // 2:
                raise CheckpointError(
                    f"config.json: {name} has {count} numbers",
                    f"It must have {turned // 2}, half of what rotates.",
                )
