"""What MiniMax-M2 reads of `config.json`, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import DecoderConfig, check_experts, check_known, check_positive


@frozen(kw_only=True)
class MiniMaxM2Config(DecoderConfig):
    """`intermediate_size` is that of one expert."""

    num_local_experts: int
    num_experts_per_tok: int

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "use_qk_norm", None, True)
        check_known(config, "qk_norm_type", None, "per_layer")
        check_known(config, "scoring_func", None, "sigmoid")
        check_known(config, "use_routing_bias", None, True)
        check_known(config, "shared_intermediate_size", None, 0)
        fields = {"rope_theta": 5_000_000.0, **config}
        rotated, width = config.get("rotary_dim"), config.get("head_dim")
        if rotated is not None and width and "partial_rotary_factor" not in config:
            check_positive(rotary_dim=rotated, head_dim=width)
            fields["partial_rotary_factor"] = rotated / width
        read = super().from_json(fields)
        check_experts(read.num_local_experts, read.num_experts_per_tok)
        return read

    @property
    def num_experts(self) -> int:
        return self.num_local_experts
