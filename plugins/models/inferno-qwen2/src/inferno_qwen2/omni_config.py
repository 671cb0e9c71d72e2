"""The fields of `config.json` that the thinker of Qwen2.5-Omni reads, under its names. Imports no
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
    grid_tokens,
    tower_name,
)
from inferno.configs.mel import HOP, RATE
from inferno.contracts import Checkpoint, Grid, RenamedView, SeeingPart
from inferno.errors import CheckpointError
from inferno_qwen2.vision_config import Qwen25VLConfig, own_name

SECONDS = 300
"""The longest audio, as published: what is longer, transformers cuts."""
_POOLED = 2


@frozen(kw_only=True)
class WindowedMelConfig(MelConfig):
    """`audio_config`."""

    n_window: int = 100
    """Half of the frames that attend to each other."""
    output_dim: int = 3584


_UNSAID = {"hidden_size": 3584}
"""Of `vision_config`, where it does not say: transformers' default is another than Qwen2.5-VL's."""


@frozen(kw_only=True)
class Qwen25OmniConfig(Qwen25VLConfig, HearsMel):
    """A Qwen2.5-VL, and Whisper's encoder with windows. Positions of audio follow each other as
    those of text."""

    audio_token_id: int = 151_646
    hearing: WindowedMelConfig = WindowedMelConfig()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse the config of a `thinking` checkpoint. Raises CheckpointError."""
        thinker = config.get("thinker_config") or config
        given: dict[str, Any] = {
            "vision_config": {**_UNSAID, **(thinker.get("vision_config") or {})}
        }
        for name in ("image_token", "audio_token"):
            for theirs in (f"{name}_id", f"{name}_index"):
                if thinker.get(theirs) is not None:
                    given[f"{name}_id"] = thinker[theirs]
        read = super().from_json({**config, **given})
        hearing = WindowedMelConfig.from_json(thinker.get("audio_config") or {})
        if hearing.output_dim != read.hidden_size or hearing.n_window % _POOLED:
            raise CheckpointError(
                f"audio_config: output_dim is {hearing.output_dim}, n_window {hearing.n_window}",
                f"The first is hidden_size, {read.hidden_size}; a window has whole tokens.",
            )
        return attrs.evolve(read, hearing=hearing)

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        # Of the beginning and the end of audio: of no use since these are tokens of the text.
        return (f"{HEARING}.audio_tower.audio_bos_eos_token.weight", *super().unused_tensors)

    @property
    def audio_seconds(self) -> float:
        return SECONDS

    @property
    def audio_chunk(self) -> tuple[float, int]:
        hearing = self.hearing
        return 2 * hearing.n_window * HOP / RATE, hearing.n_window // _POOLED

    @property
    def audio_widths(self) -> int:
        # All positions of the longest audio, of which one window is computed after the other.
        positions = SECONDS * RATE // HOP // 2
        return super().audio_widths + positions * (2 * self.hearing.d_model + self.hidden_size)

    def audio_tokens(self, grid: Grid) -> int:
        return grid_tokens(grid, _POOLED)


def processor(config: Qwen25OmniConfig, fields: Mapping[str, Any]) -> MelProcessor:
    """Return what prepares audio: an `Architecture.audio`."""
    return MelProcessor.of(config.hearing, fields, frames=SECONDS * RATE // HOP)


_TOWER = f"{HEARING}.audio_tower"


def thinking(checkpoint: Checkpoint) -> RenamedView:
    """View a checkpoint with its encoders under `visual` and `hearing`. An `Architecture.adapt`."""
    modules = {
        ENCODER: ("thinker.visual", "model.visual", ENCODER),
        _TOWER: ("thinker.audio_tower", "model.audio_tower", "audio_tower"),
    }
    part = SeeingPart(checkpoint, modules=modules)
    return RenamedView(part, {_own(name): name for name in part.names})


def _own(name: str) -> str:
    return tower_name(name) if name.startswith(f"{_TOWER}.") else own_name(name)
