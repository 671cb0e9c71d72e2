"""Recurrent states: what a layer keeps of a sequence, whatever its length.

Suffixes: S sequences of the step.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from inferno.contracts import StateSpec
from inferno.nn.batch import Batch
from inferno.nn.recurrence import beginning, taken


class State(nn.Module):
    """The recurrent state of one layer. Declares what it keeps; the runner binds its tensors.

    `layer_id` is the layer's index in its config's `cache_specs()`.
    """

    def __init__(self, layer_id: int, spec: StateSpec) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.spec = spec
        self.cache: Mapping[str, Tensor] = {}
        """Each (slots, *shape of one sequence's state)."""

    def load(self, batch: Batch) -> dict[str, Tensor]:
        """Return copies of the state tensors of the step's sequences, each (S, *shape): zeros for a
        sequence that starts with this step. Drafts are left out: S counts the others."""
        slots_S = taken(self._slots(batch), beginning(batch))
        return {name: self.cache[name].index_select(0, slots_S) for name in self.spec.tensors}

    def store(self, batch: Batch, /, **new: Tensor) -> None:
        """Store the new state tensors of the step's sequences, drafts too, each (S, *shape)."""
        assert new.keys() == self.spec.tensors.keys(), (
            f"a state has {', '.join(self.spec.tensors)}, but got {', '.join(new)}"
        )
        slots_S = self._slots(batch)
        for name, new_S in new.items():
            tensor = self.cache[name]
            tensor.index_copy_(0, slots_S, new_S.to(tensor.dtype))

    def _slots(self, batch: Batch) -> Tensor:
        assert self.cache, "a runner binds every state before the first step"
        assert batch.state_slots_S is not None, "the plan has a group of states"
        return batch.state_slots_S
