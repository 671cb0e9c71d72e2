"""One step's input to the model, already on its device. Built by the runner, read by the layers.

Shape suffixes, here and in every model:
  T tokens of the step, packed   S sequences of the step   M blocks of the longest sequence
  H query heads   K key/value heads   C head dim   D hidden   X heads x head dim   V vocabulary
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen
from torch import Tensor

if TYPE_CHECKING:
    from inferno.core.kvcache import KVCache


@frozen(eq=False)
class Batch:
    """A step as dense tensors. Sequence s owns tokens query_starts[s] to query_starts[s + 1] of
    T."""

    token_ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    """Cache slot (block · block size + offset) each token's key and value go to."""
    query_starts: Sequence[int]
    """S + 1 numbers."""
    context_lens: Sequence[int]
    """Tokens each sequence may attend to, this step's included."""
    blocks_SM: Tensor
    """Block tables, int64. Entries past a sequence's context are arbitrary valid ids."""
    block_size: int
    cache: KVCache
    query_starts_S1: Tensor
    """`query_starts`, int32, on the device."""
    context_lens_S: Tensor
    """`context_lens`, int32, on the device."""
    scratch: dict[object, Any] = field(factory=dict)
    """What an attention backend derives from the step once, under a key of its own: the next layers
    find it here."""
    windows: Mapping[int | None, Batch] = field(factory=dict)
    """The step as layers of a sliding window see it that have window blocks of their own, by
    window."""

    def of(self, window: int | None) -> Batch:
        """The step as layers of this sliding window see it: what `Attend` is given."""
        return self.windows.get(window, self)

    def with_windows(self, places: Mapping[int, tuple[Tensor, Tensor]]) -> Batch:
        """Slots and block tables of each window that has window blocks of its own. Of its tables,
        entries before the window are arbitrary valid ids."""
        windows: dict[int | None, Batch] = {}
        for window, (slots_T, blocks_SM) in places.items():
            windows[window] = evolve(self, slots_T=slots_T, blocks_SM=blocks_SM, scratch={})
        return evolve(self, windows=windows)
