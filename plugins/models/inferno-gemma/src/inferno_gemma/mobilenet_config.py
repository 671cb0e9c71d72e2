"""What MobileNet-V5 is made of: blocks, and the config of Gemma 3n that names it. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any, Self

from attrs import evolve, field, frozen
from attrs.validators import and_, gt, le

from inferno.configs import check_known, check_positive, read_config
from inferno.errors import CheckpointError


def divisible(channels: float) -> int:
    """Return the nearest multiple of 8 that is not more than a tenth less."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near if near >= 0.9 * channels else near + 8


@frozen(kw_only=True)
class Block:
    channels: int
    """That it returns."""
    stride: int = 1


@frozen(kw_only=True)
class Expands(Block):
    """A convolution to `expansion` times as many channels, and a product."""

    size: int = 3
    expansion: float = 4

    def inner(self, inputs: int) -> int:
        return divisible(inputs * self.expansion)


@frozen(kw_only=True)
class Inverts(Block):
    """Two products, with convolutions before and between them of these sizes, 0 for none."""

    first: int = 0
    middle: int = 0
    expansion: float = 2

    def inner(self, inputs: int) -> int:
        return divisible(inputs * self.expansion)


@frozen(kw_only=True)
class Attends(Block):
    """Attention; `stride` is that of keys and values, which a convolution of `size` makes."""

    heads: int
    dim: int
    size: int = 3


def _attending(count: int, block: Attends) -> list[Block]:
    return [block, Inverts(channels=block.channels)] * count


STAGES: Sequence[Sequence[Block]] = (
    (Expands(channels=128, stride=2), *[Expands(channels=128)] * 2),
    (
        Inverts(channels=256, stride=2, first=3, middle=5, expansion=6),
        *(Inverts(channels=256, first=size, expansion=4) for size in (5, 3, 5, 3)),
    ),
    (
        Inverts(channels=640, stride=2, first=5, middle=5, expansion=6),
        *[Inverts(channels=640, first=5, expansion=4)] * 7,
        Inverts(channels=640, expansion=1),
        *_attending(14, Attends(channels=640, stride=2, heads=12, dim=64)),
    ),
    (
        Inverts(channels=1280, stride=2, first=5, middle=5, expansion=6),
        *_attending(19, Attends(channels=1280, heads=16, dim=96)),
    ),
)
"""mobilenetv5_300m_enc."""
STRIDE = 16
"""Pixels of a side for each place of the finer one of the stages that are fused."""
STEM = 64


@frozen(kw_only=True)
class MobileNetConfig:
    """`vision_config` of Gemma 3n. Fields that configs omit have transformers' defaults."""

    hidden_size: int = 2048
    vocab_size: int = 128
    vocab_offset: int = 262_144
    rms_norm_eps: float = 1e-6
    tokens: int = 256
    """Positions of an image, `vision_soft_tokens_per_image` of the whole config."""
    channel_multiplier: float = field(default=1.0, validator=and_(gt(0), le(100)))
    """An argument of timm's function, `model_args`: published models have none."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the field `vision_config` of the whole config. Raises CheckpointError."""
        given = config.get("vision_config") or {}
        check_known(given, "architecture", None, "mobilenetv5_300m_enc")
        options = dict(given.get("model_args") or {})
        side = options.pop("msfa_output_resolution", 16)
        multiplier = options.pop("channel_multiplier", 1.0)
        if options:
            raise CheckpointError(
                f"vision_config: model_args has {', '.join(options)}",
                "Known are channel_multiplier and msfa_output_resolution.",
            )
        tokens = config.get("vision_soft_tokens_per_image")
        read = read_config(cls, {**given, "tokens": tokens, "channel_multiplier": multiplier})
        check_positive(hidden_size=read.hidden_size, vocab_size=read.vocab_size, tokens=read.tokens)
        if isqrt(read.tokens) != side or side**2 != read.tokens:
            raise CheckpointError(
                f"config.json: vision_soft_tokens_per_image is {read.tokens}, and the encoder's "
                f"result has {side} x {side} places",
                "Check config.json: both must be the same number, such as 256 and 16 x 16.",
            )
        return read

    @property
    def side(self) -> int:
        """Tokens of an image's side."""
        return isqrt(self.tokens)

    @property
    def stem(self) -> int:
        return STEM if self.channel_multiplier < 1 else divisible(STEM * self.channel_multiplier)

    @property
    def stages(self) -> Sequence[Sequence[Block]]:
        return [[evolve(b, channels=self._channels(b)) for b in stage] for stage in STAGES]

    def _channels(self, block: Block) -> int:
        return divisible(block.channels * self.channel_multiplier)

    @property
    def fused_channels(self) -> Sequence[int]:
        """Channels of the results that are fused."""
        return [stage[-1].channels for stage in self.stages[-2:]]

    def widths(self, pixels: int) -> int:
        """Return the numbers that the encoder has at once for a token of some pixels' side."""
        most, inputs, side = self.stem * (pixels // 2) ** 2, self.stem, pixels / 2
        for stage in self.stages:
            for block in stage:
                if isinstance(block, Expands | Inverts):
                    strided = side / block.stride if isinstance(block, Expands) else side
                    most = max(most, int(block.inner(inputs) * strided**2))
                    side /= block.stride
                inputs = block.channels
        # In float32: before and after a norm, what it computes between, and with zeros around.
        return 8 * most
