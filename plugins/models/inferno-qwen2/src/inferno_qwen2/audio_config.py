"""The fields of `config.json` that Qwen2-Audio reads, under its names. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import HearsMel, MelConfig, MelProcessor, grid_tokens
from inferno.contracts import Grid
from inferno_qwen2.config import Qwen2Config

_POOLED = 2
"""Of the encoder's positions whose mean is a token."""
_UNSAID = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 22_016,
    "vocab_size": 151_936,
}
"""Of the text model, where the published configs leave them out (transformers' defaults)."""


@frozen(kw_only=True)
class Qwen2AudioConfig(Qwen2Config, HearsMel):
    """A Qwen2, and Whisper's encoder, which hears one chunk."""

    audio_token_id: int = 151_646
    hearing: MelConfig = MelConfig()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse the config of a checkpoint that `configs.heard` views. Raises CheckpointError."""
        token = config.get("audio_token_index")
        given = {**_UNSAID, **{name: value for name, value in config.items() if value is not None}}
        read = super().from_json(given if token is None else {**given, "audio_token_id": token})
        return attrs.evolve(read, hearing=MelConfig.from_json(config.get("audio_config") or {}))

    @property
    def audio_seconds(self) -> float:
        return self.hearing.seconds

    @property
    def audio_chunk(self) -> tuple[float, int]:
        return self.hearing.seconds, self.hearing.max_source_positions // _POOLED

    def audio_tokens(self, grid: Grid) -> int:
        return grid_tokens(grid, _POOLED)


def processor(config: Qwen2AudioConfig, fields: Mapping[str, Any]) -> MelProcessor:
    """Return what prepares audio: an `Architecture.audio`."""
    # The last position that is heard reads the frame behind it, which reads its neighbour.
    return MelProcessor.of(config.hearing, fields, beyond=2)


TEMPLATE = """\
{%- set heard = namespace(count=0) -%}
{%- for message in messages -%}
{%- if loop.first and message.role != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'audio' -%}
{%- set heard.count = heard.count + 1 -%}
{{- 'Audio ' ~ heard.count ~ ': <|audio_bos|><|AUDIO|><|audio_eos|>\\n' -}}
{%- else -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
"""As transformers' processor writes conversations for checkpoints that store no template."""
