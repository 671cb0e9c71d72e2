from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from inferno.batch import Batch
from inferno.contracts import Attend, AttentionNeed


class Attention(nn.Module):
    """Causal attention over the cache. States its need; the loader binds a backend to it.

    `layer_id` counts the model's attention layers from 0, in the order of its config's `attention_needs()`.
    """

    def __init__(self, layer_id: int, need: AttentionNeed) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.need = need
        self.attend: Attend = unbound

    def forward(self, q_TX: Tensor, k_TX: Tensor, v_TX: Tensor, batch: Batch) -> Tensor:
        """(T, H·C), (T, K·C), (T, K·C) -> (T, H·C)"""
        head_dim = self.need.head_dim
        q_THC, k_TKC, v_TKC = (x.view(len(x), -1, head_dim) for x in (q_TX, k_TX, v_TX))
        return self.attend(q_THC, k_TKC, v_TKC, batch.cache.layers[self.layer_id], batch).flatten(1)


def unbound(q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, cache: Mapping[str, Tensor], batch: Batch) -> Tensor:
    raise AssertionError("inferno.loading binds every attention layer before the first step")
