"""The fields of `config.json` that Phi and Phi-3 read, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import DecoderConfig, WindowedConfig, check_known
from inferno.errors import CheckpointError

_PHI_3_ORIGINAL = 4096
"""Original context length, if `config.json` does not say."""


@frozen(kw_only=True)
class PhiConfig(DecoderConfig):
    """Phi-1, 1.5 and 2."""

    activations = ("gelu_new", "gelu_pytorch_tanh")

    max_position_embeddings: int = 2048
    layer_norm_eps: float = 1e-5
    qk_layernorm: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "tie_word_embeddings", False)
        return super().from_json({"partial_rotary_factor": 0.5, **config, "head_dim": None})


@frozen(kw_only=True)
class Phi3Config(WindowedConfig):
    """Phi-3, 3.5 and 4."""

    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        for bias in ("attention_bias", "mlp_bias", "lm_head_bias"):
            check_known(config, bias, False)
        read = super().from_json(
            {**config, "rope_parameters": _scaling(config), "layer_types": None}
        )
        if read.rope.rope_type not in ("default", "longrope"):
            raise CheckpointError(
                f"config.json: rope_type is {read.rope.rope_type!r}",
                "Phi-3 must have longrope or none.",
            )
        return read


def _scaling(config: Mapping[str, Any]) -> Any:
    """The `rope_scaling` of longrope, first called "su", with the original context, a separate
    field."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        return scaling
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    original = config.get("original_max_position_embeddings") or scaling.get(
        "original_max_position_embeddings"
    )
    return {
        **scaling,
        "rope_type": "longrope" if kind == "su" else kind,
        "original_max_position_embeddings": original or _PHI_3_ORIGINAL,
    }
