"""The fields of `config.json` that Qwen2.5-VL reads, under its names. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import evolve, frozen

from inferno.configs import check_known, check_positive, read_config
from inferno.contracts import Checkpoint, Grid, RenamedView, SeeingPart
from inferno.errors import CheckpointError
from inferno_qwen2.config import Qwen2Config

ENCODER = "visual"


@frozen(kw_only=True)
class VisionConfig:
    """`vision_config`."""

    depth: int = 32
    hidden_size: int = 1280
    out_hidden_size: int = 3584
    intermediate_size: int = 3420
    num_heads: int = 16
    patch_size: int = 14
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    window_size: int = 112
    """Pixels of a window's side: most layers attend inside of one."""
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    """Layers that attend to the whole image."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = read_config(cls, config)
        check_known(config, "hidden_act", "silu")
        sizes = {name: getattr(read, name) for name in cls.__annotations__}
        check_positive(**{name: size for name, size in sizes.items() if isinstance(size, int)})
        side = read.spatial_merge_size * read.patch_size
        if read.hidden_size % (4 * read.num_heads) or read.window_size < side:
            raise CheckpointError(
                f"vision_config: hidden_size is {read.hidden_size} of {read.num_heads} heads, "
                f"window_size {read.window_size} pixels of tokens with {side}",
                "A head has a multiple of 4 dimensions, and a window at least one token.",
            )
        return read

    @property
    def patch_numbers(self) -> int:
        return 3 * self.temporal_patch_size * self.patch_size**2


@frozen(kw_only=True)
class Qwen25VLConfig(Qwen2Config):
    """A Qwen2.5 whose positions have three dimensions, and its encoder."""

    image_token_id: int = 151655
    mrope_section: tuple[int, ...] = (16, 24, 24)
    """Pairs of a head that turn by the temporal, the vertical and the horizontal position."""
    vision: VisionConfig = VisionConfig()
    image_encoder: str = ENCODER

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse the config of a `seeing` checkpoint. Raises CheckpointError."""
        read = super().from_json({k: v for k, v in config.items() if k != "image_encoder"})
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        sections = tuple(rope.get("mrope_section") or read.mrope_section)
        vision = VisionConfig.from_json(config.get("vision_config") or {})
        if any(not isinstance(n, int) or n < 1 for n in sections) or (
            2 * sum(sections) != read.head_dim
        ):
            raise CheckpointError(
                f"config.json: mrope_section is {list(sections)!r}, heads have {read.head_dim}",
                "Its sum is half of head_dim.",
            )
        if vision.out_hidden_size != read.hidden_size:
            raise CheckpointError(
                f"config.json: the encoder's embeddings have {vision.out_hidden_size} numbers, "
                f"tokens' {read.hidden_size}",
                "out_hidden_size of vision_config must be hidden_size.",
            )
        return evolve(read, mrope_section=sections, vision=vision)

    @property
    def image_patch(self) -> tuple[int, int]:
        side, vision = self.vision.patch_size * self.vision.spatial_merge_size, self.vision
        return side, vision.spatial_merge_size**2 * vision.patch_numbers

    @property
    def image_widths(self) -> int:
        vision = self.vision
        # A patch's residual stream, norm, queries, keys and values before and after they are
        # rotated in float32, what attention returns, and the MLP's three matrices.
        numbers = 12 * vision.hidden_size + 3 * vision.intermediate_size
        return vision.spatial_merge_size**2 * numbers

    def image_tokens(self, grid: Grid) -> int:
        frames, rows, columns = grid
        return frames * rows * columns // self.vision.spatial_merge_size**2


_OWN_NAMES = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
"""The encoder's matrices are not called as those that ranks divide: each holds it whole."""


def seeing(checkpoint: Checkpoint) -> RenamedView:
    """View a checkpoint with its encoder under `visual`. An `Architecture.adapt`."""
    part = SeeingPart(checkpoint, modules={ENCODER: ("model.visual", ENCODER)})
    return RenamedView(part, {_own(name): name for name in part.names})


def _own(name: str) -> str:
    if not name.startswith(f"{ENCODER}."):
        return name
    return ".".join(_OWN_NAMES.get(part, part) for part in name.split("."))
