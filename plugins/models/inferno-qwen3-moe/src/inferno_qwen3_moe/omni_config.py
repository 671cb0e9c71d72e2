"""The fields of `config.json` that the thinker of Qwen3-Omni reads, under its names. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import (
    ENCODER,
    HEARING,
    HearsMel,
    MelConfig,
    MelProcessor,
    check_known,
    check_positive,
    tower_name,
)
from inferno.contracts import Checkpoint, Grid, RenamedView, SeeingPart
from inferno.errors import CheckpointError
from inferno_qwen3_moe.checkpoint import per_expert
from inferno_qwen3_moe.vision_config import Qwen3VLMoeConfig

SECONDS = 300
"""The longest audio, as published: what is longer, transformers cuts."""


@frozen(kw_only=True)
class StridedMelConfig(MelConfig):
    """`audio_config`: three convolutions with a stride of two, in time and in frequency."""

    n_window: int = 50
    """Half of the frames that the convolutions see together."""
    n_window_infer: int = 800
    """Frames that attend to each other."""
    downsample_hidden_size: int = 480
    output_dim: int = 2048

    def positions(self, frames: int) -> int:
        """Return the positions of some frames."""
        whole, rest = divmod(frames, 2 * self.n_window)
        return whole * _halved(2 * self.n_window) + _halved(rest)

    @property
    def bands(self) -> int:
        """Mel bins after the convolutions."""
        return _halved(self.num_mel_bins)


def _halved(count: int) -> int:
    """Three times, rounded up."""
    for _ in range(3):
        count = (count + 1) // 2
    return count


@frozen(kw_only=True)
class Qwen3OmniMoeConfig(Qwen3VLMoeConfig, HearsMel):
    """A mixture of Qwen3-VL that hears. Positions of audio follow each other as those of text."""

    audio_token_id: int = 151_646
    hearing: StridedMelConfig = StridedMelConfig()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse the config of a `thinking` checkpoint. Raises CheckpointError."""
        check_known(config, "norm_topk_prob", True)
        thinker = config.get("thinker_config") or config
        names = ("vision_config", "image_token_id", "audio_token_id")
        given = {name: thinker[name] for name in names if thinker.get(name) is not None}
        read = super().from_json({**config, **given})
        hearing = StridedMelConfig.from_json(thinker.get("audio_config") or {})
        check_positive(**attrs.asdict(hearing))
        together, rest = divmod(hearing.n_window_infer, 2 * hearing.n_window)
        if hearing.output_dim != read.hidden_size or rest or not together:
            raise CheckpointError(
                f"audio_config: output_dim is {hearing.output_dim}, n_window_infer "
                f"{hearing.n_window_infer}",
                f"The first is hidden_size, {read.hidden_size}, the second a multiple of twice "
                f"n_window, {hearing.n_window}.",
            )
        return attrs.evolve(read, hearing=hearing)

    @property
    def audio_seconds(self) -> float:
        return SECONDS

    @property
    def audio_chunk(self) -> tuple[float, int]:
        frames = 2 * self.hearing.n_window
        return frames / 100, self.hearing.positions(frames)

    @property
    def audio_widths(self) -> int:
        hearing = self.hearing
        frames = SECONDS * 100
        # After the first convolution a frame of each second one has half of the mel bins.
        strided = frames // 2 * (hearing.num_mel_bins // 2) * hearing.downsample_hidden_size
        position = 9 * hearing.d_model + 2 * hearing.encoder_ffn_dim + self.hidden_size
        return 2 * strided + hearing.positions(frames) * position

    def audio_tokens(self, grid: Grid) -> int:
        return self.hearing.positions(grid[2])


def hears(config: Qwen3OmniMoeConfig, fields: Mapping[str, Any]) -> MelProcessor:
    """Return what prepares audio: an `Architecture.audio`."""
    return MelProcessor.of(config.hearing, fields, frames=SECONDS * 100)


_TOWER = f"{HEARING}.audio_tower"


def thinking(checkpoint: Checkpoint) -> Checkpoint:
    """View a checkpoint with its encoders under `visual` and `hearing`, and with matrices for each
    expert. An `Architecture.adapt`."""
    modules = {
        ENCODER: ("thinker.visual", "model.visual", ENCODER),
        _TOWER: ("thinker.audio_tower", "model.audio_tower", "audio_tower"),
    }
    part = SeeingPart(checkpoint, modules=modules)
    return per_expert(RenamedView(part, {_own(name): name for name in part.names}))


def _own(name: str) -> str:
    if name.startswith(f"{_TOWER}."):
        return tower_name(name)
    if name.startswith(f"{ENCODER}.merger"):
        name = name.replace(f"{ENCODER}.merger_list.", f"{ENCODER}.deepstack_merger_list.")
        for theirs, ours in (("ln_q", "norm"), ("mlp.0", "linear_fc1"), ("mlp.2", "linear_fc2")):
            name = name.replace(f".{theirs}.", f".{ours}.")
    return name
