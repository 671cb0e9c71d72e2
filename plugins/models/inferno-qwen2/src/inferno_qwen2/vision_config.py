"""The fields of `config.json` that Qwen2.5-VL reads, under its names. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import ENCODER, SeesGrids, VisionConfig, with_vision
from inferno.contracts import Checkpoint, RenamedView, SeeingPart
from inferno.errors import CheckpointError
from inferno_qwen2.config import Qwen2Config


@frozen(kw_only=True)
class WindowedVisionConfig(VisionConfig):
    """`vision_config`."""

    depth: int = 32
    hidden_size: int = 1280
    out_hidden_size: int = 3584
    intermediate_size: int = 3420
    num_heads: int = 16
    patch_size: int = 14
    window_size: int = 112
    """Pixels of a window's side: most layers attend inside of one."""
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    """Layers that attend to the whole image."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json(config)
        if read.window_size < (side := read.spatial_merge_size * read.patch_size):
            raise CheckpointError(
                f"vision_config: window_size is {read.window_size} pixels of tokens with {side}",
                "A window has at least one token.",
            )
        return read


@frozen(kw_only=True)
class Qwen25VLConfig(Qwen2Config, SeesGrids):
    """A Qwen2.5 whose positions have three dimensions, and its encoder."""

    image_token_id: int = 151655
    mrope_section: tuple[int, ...] = (16, 24, 24)
    vision: WindowedVisionConfig = WindowedVisionConfig()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse the config of a `seeing` checkpoint. Raises CheckpointError."""
        vision = WindowedVisionConfig.from_json(config.get("vision_config") or {})
        return with_vision(super().from_json(config), config, vision)


_OWN_NAMES = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
"""The encoder's matrices are not called as those that ranks divide: each holds it whole."""


def seeing(checkpoint: Checkpoint) -> RenamedView:
    """View a checkpoint with its encoder under `visual`. An `Architecture.adapt`."""
    part = SeeingPart(checkpoint, modules={ENCODER: ("model.visual", ENCODER)})
    return RenamedView(part, {own_name(name): name for name in part.names})


def own_name(name: str) -> str:
    """Return a tensor's name in the encoder, of the name that transformers gives it."""
    if not name.startswith(f"{ENCODER}."):
        return name
    return ".".join(_OWN_NAMES.get(part, part) for part in name.split("."))
