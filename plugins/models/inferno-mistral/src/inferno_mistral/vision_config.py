"""The fields of `config.json` that Mistral Small 3.1 and Ministral 3 read, images included, under
their names. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import check_known, check_positive, read_config
from inferno.contracts import Checkpoint, Grid, SeeingPart
from inferno.errors import CheckpointError
from inferno_mistral.config import Ministral3Config, MistralConfig

ENCODER = "encoder"
"""The path of the encoder's module."""
_BREAK, _END = 2, 3
"""How far the tokens that end a row, and an image, are behind that of an image, [IMG], in every
tokenizer of Mistral's; no config says it."""


@frozen(kw_only=True)
class VisionConfig:
    """`vision_config`, and the fields beside it that the projector reads."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    patch_size: int = 14
    hidden_act: str = "gelu"
    rope_theta: float = 10_000.0
    spatial_merge_size: int = 2
    multimodal_projector_bias: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse the `config.json` of the whole. Raises CheckpointError."""
        check_known(config, "projector_hidden_act", "gelu")
        check_known(config, "vision_feature_layer", -1)
        vision = config.get("vision_config") or {}
        check_known(vision, "hidden_act", "gelu", "silu")
        check_known(vision, "num_channels", 3)
        rope = vision.get("rope_parameters") or vision
        beside = ("spatial_merge_size", "multimodal_projector_bias")
        fields = {name: config[name] for name in beside if name in config}
        read = read_config(cls, {**vision, "rope_theta": rope.get("rope_theta"), **fields})
        sizes = attrs.asdict(read)
        check_positive(**{n: size for n, size in sizes.items() if type(size) in (int, float)})
        if read.hidden_size % (4 * read.num_attention_heads):
            raise CheckpointError(
                f"vision_config: hidden_size is {read.hidden_size} of {read.num_attention_heads} "
                "heads",
                "A head has a multiple of 4 dimensions.",
            )
        return read

    @property
    def unit(self) -> int:
        """Patches of a token."""
        return self.spatial_merge_size**2

    @property
    def side(self) -> int:
        """Pixels of a token's side."""
        return self.spatial_merge_size * self.patch_size


class SeesRows:
    """What the config of the text model has besides to be a `contracts.ImageModelConfig`; each row
    of an image is followed by a token of text."""

    __slots__ = ()

    image_token_id: int
    vision: VisionConfig
    hidden_size: int

    @property
    def image_encoder(self) -> str:
        return ENCODER

    @property
    def image_patch(self) -> tuple[int, int]:
        return self.vision.side, self.vision.unit * 3 * self.vision.patch_size**2

    @property
    def image_widths(self) -> int:
        vision = self.vision
        # A patch's residual stream, norm, queries, keys and values before and after they are
        # rotated in float32, what attention returns, and the MLP's three matrices.
        patch = 12 * vision.hidden_size + 3 * vision.intermediate_size
        return vision.unit * patch + 2 * self.hidden_size

    def image_tokens(self, grid: Grid) -> int:
        return grid[1] * grid[2] // self.vision.unit

    def image_layout(self, grid: Grid) -> Sequence[int | None]:
        merge, image = self.vision.spatial_merge_size, self.image_token_id
        row = [None] * (grid[2] // merge)
        layout: list[int | None] = [*row, image + _BREAK] * (grid[1] // merge)
        return [*layout[:-1], image + _END]


@frozen(kw_only=True)
class SeeingMistralConfig(SeesRows, MistralConfig):
    image_token_id: int = 10
    vision: VisionConfig = VisionConfig()


@frozen(kw_only=True)
class SeeingMinistral3Config(SeesRows, Ministral3Config):
    image_token_id: int = 10
    vision: VisionConfig = VisionConfig()


def mistral3(config: Mapping[str, Any]) -> SeeingMistralConfig | SeeingMinistral3Config:
    """Parse the config of a `seeing` checkpoint: an `Architecture.config`. Raises
    CheckpointError."""
    token, vision = config.get("image_token_index"), VisionConfig.from_json(config)
    given = config if token is None else {**config, "image_token_id": token}
    if (kind := config.get("model_type")) == "mistral":
        return attrs.evolve(SeeingMistralConfig.from_json(given), vision=vision)
    if kind == "ministral3":
        return attrs.evolve(SeeingMinistral3Config.from_json(given), vision=vision)
    raise CheckpointError(
        f"config.json: the text model's model_type is {kind!r}", "It is mistral or ministral3."
    )


_MODULES = {
    f"{ENCODER}.{name}": (f"model.{name}", name)
    for name in ("vision_tower", "multi_modal_projector")
}
_RENAMED = {
    **{f"{name}_proj": name for name in ("q", "k", "v", "gate", "up", "down")},
    "o_proj": "out",
}


def seeing(checkpoint: Checkpoint) -> SeeingPart:
    """View a checkpoint with what its images are computed by under `encoder`. An
    `Architecture.adapt`."""
    return SeeingPart(checkpoint, modules=_MODULES, renamed=_RENAMED)
