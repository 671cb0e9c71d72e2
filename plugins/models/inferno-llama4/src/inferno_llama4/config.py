"""The fields of `config.json` that Llama 4's text model reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import field, frozen
from attrs.validators import ge

from inferno.configs import FULL, DecoderConfig, check_experts, check_positive
from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError

CHUNKED = "chunked_attention"
"""A value of `layer_types`."""


@frozen(kw_only=True)
class Llama4Config(DecoderConfig):
    """`intermediate_size` is the width of an expert, and of the shared one. Fields that configs
    omit have transformers' defaults."""

    vocab_size: int = 202_048
    hidden_size: int = 5120
    intermediate_size: int = 8192
    intermediate_size_mlp: int = 16_384
    """The inner width of layers without experts."""
    num_hidden_layers: int = 48
    num_attention_heads: int = 40
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    num_local_experts: int = 16
    num_experts_per_tok: int = 1
    interleave_moe_layer_step: int = 1
    """Every n-th layer has experts, starting with the n-th."""
    moe_layers: tuple[int, ...] | None = None
    """The layers with experts, if given."""
    attention_bias: bool = False
    use_qk_norm: bool = True
    """Whether rotated queries and keys are normalized, each head by its length."""
    no_rope_layer_interval: int = 4
    no_rope_layers: tuple[int, ...] = ()
    """1 for each layer that rotates queries and keys; without it, all but every n-th do."""
    layer_types: tuple[str, ...] = ()
    """`CHUNKED` or `FULL`; without it, layers that rotate are chunked."""
    attention_chunk_size: int | None = None
    """In tokens."""
    attn_temperature_tuning: bool = True
    """Whether queries of layers without rotation are multiplied by 1 + attn_scale · ln(1 +
    floor((position + 1) / floor_scale))."""
    floor_scale: float = field(default=8192.0, validator=ge(1))
    attn_scale: float = 0.1

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        tuned = config.get("attn_temperature_tuning", True)
        given = {
            "attention_chunk_size": 8192,
            "rope_theta": 500_000.0,
            **config,
            # The first configs have the number of scales that it once had.
            "attn_temperature_tuning": bool(tuned) if isinstance(tuned, int) else tuned,
            "no_rope_layers": config.get("no_rope_layers") or (),
            "layer_types": config.get("layer_types") or (),
        }
        read = super().from_json(given)
        check_experts(read.num_local_experts, read.num_experts_per_tok)
        check_positive(
            intermediate_size_mlp=read.intermediate_size_mlp,
            interleave_moe_layer_step=read.interleave_moe_layer_step,
            no_rope_layer_interval=read.no_rope_layer_interval,
        )
        layers, step = read.num_hidden_layers, read.interleave_moe_layer_step
        interval, moe = read.no_rope_layer_interval, read.moe_layers
        turns = read.no_rope_layers or tuple(int((n + 1) % interval > 0) for n in range(layers))
        read = attrs.evolve(
            read,
            moe_layers=tuple(range(step - 1, layers, step)) if moe is None else moe,
            no_rope_layers=turns[:layers],
            layer_types=read.layer_types or tuple(CHUNKED if n else FULL for n in turns[:layers]),
        )
        read._check_layers()
        return read

    def _check_layers(self) -> None:
        layers, chunk = self.num_hidden_layers, self.attention_chunk_size
        if len(self.no_rope_layers) < layers or not {*self.no_rope_layers} <= {0, 1}:
            raise CheckpointError(
                f"config.json: no_rope_layers has {len(self.no_rope_layers)} entries for {layers} "
                "layers",
                "It must have a 1 for each layer that rotates its keys, and a 0 for the others.",
            )
        if len(self.layer_types) != layers or not {*self.layer_types} <= {FULL, CHUNKED}:
            raise CheckpointError(
                f"config.json: layer_types has {len(self.layer_types)} entries, "
                f"{', '.join(sorted({*self.layer_types}))}",
                f"It must have {layers}, each {FULL} or {CHUNKED}.",
            )
        if CHUNKED in self.layer_types and (chunk is None or chunk < 1):
            raise CheckpointError(
                f"config.json: attention_chunk_size is {chunk}",
                f"Layers of the type {CHUNKED} need chunks of at least one token.",
            )
        if self.moe_layers and not 0 <= min(self.moe_layers) <= max(self.moe_layers) < layers:
            raise CheckpointError(
                f"config.json: moe_layers is {str(self.moe_layers)[:100]}",
                f"It must list layers, from 0 to {layers - 1}.",
            )

    @property
    def num_experts(self) -> int:
        return self.num_local_experts if self.moe_layers else 0

    def rotates(self, layer: int) -> bool:
        """Return whether a layer rotates queries and keys."""
        return bool(self.no_rope_layers[layer])

    def has_experts(self, layer: int) -> bool:
        return layer in (self.moe_layers or ())

    def attention_spec(self, layer: int) -> AttentionSpec:
        chunked = self.layer_types[layer] == CHUNKED
        chunk = self.attention_chunk_size if chunked else None
        return attrs.evolve(super().attention_spec(layer), attention_chunk=chunk)
