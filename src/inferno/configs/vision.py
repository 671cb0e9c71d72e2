"""Configs of models whose images are grids of patches, some of which make a token together: their
encoders', and what the text model must have. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import attrs
from attrs import frozen

from inferno.configs.decoder import DecoderConfig
from inferno.configs.reader import check_known, check_positive, read_config
from inferno.contracts import Checkpoint, Grid, SeeingPart
from inferno.errors import CheckpointError

ENCODER = "visual"
"""The path of the encoder's module in the models that have it."""
T = TypeVar("T", bound="SeesGrids")


@frozen(kw_only=True)
class VisionConfig:
    """`vision_config`: the fields that all of them have. A token is `spatial_merge_size` x
    `spatial_merge_size` patches."""

    activation: ClassVar[str] = "silu"
    """The value of `hidden_act` that the encoder computes."""
    matrices: ClassVar[int] = 3
    """Of an MLP's hidden size."""

    depth: int
    hidden_size: int
    out_hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the field `vision_config`. Raises CheckpointError."""
        read = read_config(cls, config)
        check_known(config, "hidden_act", cls.activation)
        sizes = {name: getattr(read, name) for name in attrs.fields_dict(cls)}
        check_positive(**{name: size for name, size in sizes.items() if isinstance(size, int)})
        if read.hidden_size % (4 * read.num_heads):
            raise CheckpointError(
                f"vision_config: hidden_size is {read.hidden_size} of {read.num_heads} heads",
                "A head has a multiple of 4 dimensions.",
            )
        return read

    @property
    def patch_numbers(self) -> int:
        """Numbers of a patch: three colours, of each frame that it covers."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def unit(self) -> int:
        """Patches of a token."""
        return self.spatial_merge_size**2


@frozen(kw_only=True)
class DeepVisionConfig(VisionConfig):
    """An encoder with a table of position embeddings for a square of patches, some of whose layers
    have features for the decoder (arXiv:2406.04334)."""

    activation: ClassVar[str] = "gelu_pytorch_tanh"
    matrices: ClassVar[int] = 2

    depth: int = 27
    hidden_size: int = 1152
    out_hidden_size: int = 3584
    intermediate_size: int = 4304
    num_heads: int = 16
    patch_size: int = 16
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)
    """Layers of the encoder, in order: the features of the first are added after the decoder's
    first layer, and so on."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json(config)
        indexes = read.deepstack_visual_indexes
        if list(indexes) != sorted({n for n in indexes if 0 <= n < read.depth}):
            raise CheckpointError(
                f"vision_config: deepstack_visual_indexes is {list(indexes)}",
                f"They are layers of the encoder, which has {read.depth}, in order.",
            )
        if read.side**2 != read.num_position_embeddings:
            raise CheckpointError(
                f"vision_config: num_position_embeddings is {read.num_position_embeddings}",
                "It is a square number.",
            )
        return read

    @property
    def side(self) -> int:
        """Of the square of position embeddings."""
        return int(self.num_position_embeddings**0.5)


@frozen(kw_only=True)
class SiglipConfig:
    """`vision_config` of SigLIP's encoder (arXiv:2303.15343). Fields that configs omit have
    transformers' defaults."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    patch_size: int = 16
    layer_norm_eps: float = 1e-6

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read its fields, and those that a subclass has. Raises CheckpointError."""
        read = read_config(cls, fields)
        check_known(fields, "hidden_act", "gelu_pytorch_tanh")
        check_known(fields, "num_channels", 3)
        sizes = {name: getattr(read, name) for name in attrs.fields_dict(cls)}
        check_positive(**{name: size for name, size in sizes.items() if type(size) is int})
        if read.hidden_size % read.num_attention_heads:
            raise CheckpointError(
                f"vision_config: hidden_size {read.hidden_size} is not divisible by "
                f"num_attention_heads {read.num_attention_heads}",
                "Check both.",
            )
        return read

    @property
    def patch_widths(self) -> int:
        """Numbers that the encoder has at once for each patch: its residual stream, norm, queries,
        keys and values, what attention returns, and the MLP's hidden numbers before and after the
        activation."""
        return 8 * self.hidden_size + 2 * self.intermediate_size


def siglip_part(checkpoint: Checkpoint, encoder: str) -> SeeingPart:
    """View a checkpoint with SigLIP and a projector under the path of its `encoder`, wherever
    transformers' releases keep them."""
    modules = {
        f"{encoder}.{name}": (
            f"model.{name}.vision_model",
            f"{name}.vision_model",
            f"model.{name}",
            name,
        )
        for name in ("vision_tower", "multi_modal_projector")
    }
    renamed = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "out"}
    return SeeingPart(checkpoint, modules=modules, renamed=renamed)


class SeesGrids(DecoderConfig):
    """What the config of a decoder has besides to be a `contracts.ImageModelConfig`. A base after
    the decoder's own, as attrs takes a field's default from the first base; the subclass has these
    fields."""

    __slots__ = ()

    image_token_id: int
    mrope_section: tuple[int, ...]
    """Pairs of a head that turn by the temporal, the vertical and the horizontal position."""
    vision: VisionConfig

    @property
    def image_encoder(self) -> str:
        return ENCODER

    @property
    def image_patch(self) -> tuple[int, int]:
        vision = self.vision
        return vision.patch_size * vision.spatial_merge_size, vision.unit * vision.patch_numbers

    @property
    def image_widths(self) -> int:
        vision = self.vision
        # A patch's residual stream, norm, queries, keys and values before and after they are
        # rotated in float32, what attention returns, and the MLP's matrices.
        numbers = 12 * vision.hidden_size + vision.matrices * vision.intermediate_size
        return vision.unit * numbers

    def image_tokens(self, grid: Grid) -> int:
        frames, rows, columns = grid
        return frames * rows * columns // self.vision.unit


class SeesGridsDeeply(SeesGrids):
    """The same with an encoder some of whose layers have features for the decoder."""

    __slots__ = ()

    vision: DeepVisionConfig

    @property
    def image_widths(self) -> int:
        vision = self.vision
        # Beside what the layers have: the embedding, a feature of each of some layers, and the
        # patches that are merged, before and after the first product.
        merged = 2 * vision.unit * vision.hidden_size
        features = (1 + len(vision.deepstack_visual_indexes)) * vision.out_hidden_size
        return super().image_widths + merged + features


def with_vision(read: T, config: Mapping[str, Any], vision: VisionConfig) -> T:
    """Return the config of a text model with that of its encoder. Raises CheckpointError where they
    do not go together."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    sections = tuple(rope.get("mrope_section") or read.mrope_section)
    turned = int(read.head_dim * read.rope.partial_rotary_factor)
    if any(not isinstance(n, int) or n < 1 for n in sections) or (
        2 * sum(sections) != turned or len(sections) != 3
    ):
        raise CheckpointError(
            f"config.json: mrope_section is {list(sections)!r}, of heads {turned} numbers turn",
            "It has three numbers, whose sum is half of those.",
        )
    if vision.out_hidden_size != read.hidden_size:
        raise CheckpointError(
            f"config.json: the encoder's embeddings have {vision.out_hidden_size} numbers, "
            f"tokens' {read.hidden_size}",
            "out_hidden_size of vision_config must be hidden_size.",
        )
    features = len(vision.deepstack_visual_indexes) if isinstance(vision, DeepVisionConfig) else 0
    if features > read.num_hidden_layers:
        raise CheckpointError(
            f"vision_config: {features} layers have features for the decoder, which has "
            f"{read.num_hidden_layers} layers",
            "Check deepstack_visual_indexes.",
        )
    changed: Any = read  # whose fields the subclass has
    result: T = attrs.evolve(changed, mrope_section=sections, vision=vision)
    return result
