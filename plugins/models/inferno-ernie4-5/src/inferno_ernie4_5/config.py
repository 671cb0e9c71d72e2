"""The fields of `config.json` that ERNIE 4.5 reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import evolve, frozen

from inferno.configs import DecoderConfig, check_experts, check_known, check_positive

_THETA = 500_000.0
"""The rotary base if `config.json` omits it."""


@frozen(kw_only=True)
class ErnieConfig(DecoderConfig):
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    use_bias: bool = False
    """Whether attention and MLP have biases."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        return cls._read({"head_dim": 128, "num_key_value_heads": 2, **config})

    @classmethod
    def _read(cls, config: Mapping[str, Any]) -> Self:
        theta = config.get("rope_theta")
        return super().from_json({**config, "rope_theta": _THETA if theta is None else theta})


@frozen(kw_only=True)
class ErnieMoeConfig(ErnieConfig):
    """ERNIE 4.5 with experts. `intermediate_size` is that of the layers without."""

    unused_tensors = ("model.mtp_*",)
    moe_num_experts: int = 64
    moe_k: int = 6
    """Experts of a token."""
    moe_intermediate_size: int = 1536
    """Width of one expert."""
    moe_num_shared_experts: int = 2
    """Width of the shared expert, in routed experts; 0: there is none."""
    moe_layer_start_index: int = 1
    moe_layer_end_index: int = -1
    """The first and the last layer that may have experts; -1: the model's last one."""
    moe_layer_interval: int = 1
    """Every n-th of them has some."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "use_bias", False, None)
        check_known(config, "moe_gate_act", "softmax", None)
        read = cls._read({"num_key_value_heads": 4, **config})
        check_experts(read.moe_num_experts, read.moe_k)
        check_positive(
            moe_intermediate_size=read.moe_intermediate_size,
            moe_layer_interval=read.moe_layer_interval,
        )
        last = read.moe_layer_end_index in (-1, read.num_hidden_layers - 1)
        return evolve(read, moe_layer_end_index=-1) if last else read

    @property
    def num_experts(self) -> int:
        return self.moe_num_experts

    def has_experts(self, layer: int) -> bool:
        begins, ends = self.moe_layer_start_index, self.moe_layer_end_index
        between = begins <= layer and (ends == -1 or layer <= ends)
        return between and (layer + 1) % self.moe_layer_interval == 0
