"""The fields of `config.json` that Voxtral reads, under its names. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import HearsMel, MelConfig, MelProcessor, check_known
from inferno.contracts import Grid
from inferno.errors import CheckpointError
from inferno_llama.config import LlamaConfig


@frozen(kw_only=True)
class VoxtralConfig(LlamaConfig, HearsMel):
    """A Llama, and Whisper's encoder, which hears one chunk after the other."""

    audio_token_id: int = 24
    hearing: MelConfig = MelConfig()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse the config of a checkpoint that `configs.heard` views. Raises CheckpointError."""
        check_known(config, "projector_hidden_act", "gelu")
        hearing = MelConfig.from_json(config.get("audio_config") or {})
        read = attrs.evolve(super().from_json(config), hearing=hearing)
        joined, rest = divmod(hearing.encoder_ffn_dim, hearing.d_model)
        if rest or hearing.max_source_positions % joined:
            raise CheckpointError(
                f"audio_config: intermediate_size is {hearing.encoder_ffn_dim}, "
                f"hidden_size {hearing.d_model}, of {hearing.max_source_positions} positions",
                "A token is a whole number of positions, and a chunk a whole number of tokens.",
            )
        return read

    @property
    def joined(self) -> int:
        """Positions of the encoder in a token."""
        return self.hearing.encoder_ffn_dim // self.hearing.d_model

    @property
    def audio_seconds(self) -> float:
        return math.inf

    @property
    def audio_chunk(self) -> tuple[float, int]:
        return self.hearing.seconds, self.hearing.max_source_positions // self.joined

    def audio_tokens(self, grid: Grid) -> int:
        return grid[0] * self.audio_chunk[1] if grid[2] else 0


def processor(config: VoxtralConfig, fields: Mapping[str, Any]) -> MelProcessor:
    """Return what prepares audio: an `Architecture.audio`."""
    return MelProcessor.of(config.hearing, fields, chunks=True)


TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.content is string -%}
{%- set parts = [{'type': 'text', 'text': message.content}] -%}
{%- else -%}
{%- set parts = message.content -%}
{%- endif -%}
{%- if message.role == 'system' -%}
{%- set opening, closing = '[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]' -%}
{%- elif message.role == 'user' -%}
{%- set opening, closing = '[INST]', '[/INST]' -%}
{%- elif message.role == 'assistant' -%}
{%- set opening, closing = '', eos_token -%}
{%- else -%}
{{- raise_exception('roles are system, user and assistant') -}}
{%- endif -%}
{{- opening -}}
{%- for part in parts -%}
{{- '[BEGIN_AUDIO][AUDIO]' if part.type == 'audio' else part.text -}}
{%- endfor -%}
{{- closing -}}
{%- endfor -%}
"""
"""Mistral's format of the version 7, which checkpoints have in `tekken.json` only."""
