from __future__ import annotations

from torch import Tensor, nn

from inferno.batch import Batch
from inferno.contracts import StateNeed


class State(nn.Module):
    """What a recurrent layer keeps of each sequence. States its need; the loader binds it to the
    cache.

    `layer_id` counts the model's layers that keep something from 0, in the order of its config's
    `cache_needs()`.
    """

    def __init__(self, layer_id: int, need: StateNeed) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.need = need

    def load(self, batch: Batch) -> dict[str, Tensor]:
        """Each tensor of the need for the step's sequences, (S, ...); zeros for those that begin
        with this step."""
        raise AssertionError("inferno.loading binds every state before the first step")

    def store(self, batch: Batch, /, **new: Tensor) -> None:
        """Keep the step's sequences' new tensors, each (S, ...)."""
        raise AssertionError("inferno.loading binds every state before the first step")
