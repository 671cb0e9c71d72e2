"""The fields of `config.json` that MiMo reads. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from inferno.contracts import AttentionSpec
from inferno_qwen2.config import Qwen2Config


@frozen(kw_only=True)
class MiMoConfig(Qwen2Config):
    """Qwen2's, with layers that predict further tokens (`contracts.MTPModelConfig`)."""

    num_nextn_predict_layers: int = 0
    """The number of these layers. The checkpoint may lack them."""

    @property
    def mtp_tensors(self) -> tuple[str, ...]:
        return tuple(f"model.mtp_layers.{i}.*" for i in range(self.num_nextn_predict_layers))

    def mtp_specs(self) -> Sequence[AttentionSpec]:
        # As the last layer: no published model has a window.
        return [self.attention_spec(self.num_hidden_layers - 1)] * self.num_nextn_predict_layers
