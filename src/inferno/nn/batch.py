"""One step's input to the model, already on its device. Built by the runner, read by the layers.

Shape suffixes, here and in every model:
  T tokens of the step, packed   S sequences of the step   M blocks of the longest sequence
  H query heads   K key/value heads   C head dim   D hidden   X heads x head dim   V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve, field, frozen
from torch import Tensor


@frozen(eq=False)
class Batch:
    """A step as dense tensors. Sequence s owns tokens query_starts[s] to query_starts[s + 1] of T.
    Slots and block tables are those of one cache group: see `of_group`.

    A padding row is a sequence of one token, slot -1 and length 0, that fills up a step's shape. It
    changes nothing, and nothing reads its result.
    """

    token_ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    """Cache slot (block · block size + offset) for each token's key and value; -1 in a padding
    row."""
    query_starts: Sequence[int]
    """S + 1 indices."""
    context_lens: Sequence[int]
    """Tokens each sequence may attend to, this step's included; 0 in a padding row. In a captured
    step these are upper bounds."""
    blocks_SM: Tensor
    """Block tables, int64. Entries past a sequence's context are arbitrary valid ids."""
    block_size: int
    query_starts_S1: Tensor
    """`query_starts`, int32, on the device."""
    context_lens_S: Tensor
    """Tokens each sequence may attend to, int32, on the device."""
    state_slots_S: Tensor | None = None
    """The slot of each sequence's recurrent states, int64; the states are zero if the sequence
    starts with this step. Drafts have slots of their own, padding rows one that no sequence uses.
    None for models without states."""
    follows: Sequence[bool] = ()
    """Whether each sequence is a draft, of one token: its recurrent states begin as those after the
    sequence before it, and are stored in its own slot. Empty: none is."""
    captured: bool = False
    """Whether the step is captured, to run again with other values in its tensors. Every sequence
    has one token, or is a padding row; or `query_starts` tells only the number of tokens, where the
    attention's backends can capture steps with prompts. What is read from anything but the tensors
    is fixed."""
    scratch: dict[object, Any] = field(factory=dict)
    """Values that an attention backend derives from the step once and its other layers reuse, under
    the backend's own key."""
    groups: tuple[Batch, ...] = ()
    """The step as layers of each cache group see it. Empty if there is only one."""

    def of_group(self, index: int) -> Batch:
        """Return the step with the slots and block tables of the plan's cache group of this index:
        the input of `Attend`. Entries of a table before the group's sliding window, if it has one,
        are arbitrary valid ids."""
        return self.groups[index] if self.groups else self

    def with_groups(self, tables: Sequence[tuple[Tensor, Tensor]]) -> Batch:
        """Return the step with slots and block tables for each cache group."""
        if len(tables) == 1:
            return self
        return evolve(
            self,
            groups=tuple(
                evolve(self, slots_T=slots_T, blocks_SM=blocks_SM, scratch={})
                for slots_T, blocks_SM in tables
            ),
        )
