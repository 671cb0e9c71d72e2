"""Cache groups: layers that need the same of the cache share blocks, or slots."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import evolve, frozen

from inferno.contracts import DTYPE_BYTES, AttentionSpec, CacheTensor, DType, StateSpec
from inferno.errors import CheckpointError


def nbytes_of(tensors: Mapping[str, CacheTensor]) -> int:
    """Bytes of one block, or of one sequence's state."""
    return sum(math.prod(t.shape) * DTYPE_BYTES[t.dtype] for t in tensors.values())


@frozen(kw_only=True)
class StateUse:
    """The layers that keep one kind of recurrent state."""

    spec: StateSpec
    layers: tuple[int, ...]
    cache: Mapping[str, CacheTensor]
    """What each layer keeps per sequence: the spec's tensors, with the compute type filled in."""


def state_uses(
    specs: Mapping[int, AttentionSpec | StateSpec], dtype: DType
) -> tuple[StateUse, ...]:
    """The recurrent layers among a model's layers. Raises CheckpointError for a model that keeps
    nothing of its tokens."""
    if not specs:
        raise CheckpointError(
            "the model has neither attention layers nor recurrent states",
            "Its config.json is not one inferno can run.",
        )
    layers = defaultdict[StateSpec, list[int]](list)
    for layer, spec in specs.items():
        if isinstance(spec, StateSpec):
            layers[spec].append(layer)
    return tuple(
        StateUse(spec=spec, layers=tuple(ids), cache=spec.resolved(dtype))
        for spec, ids in layers.items()
    )


@frozen(kw_only=True)
class CacheGroupPlan:
    """What one group of layers keeps, and what a prefix of a sequence is worth to it.

    full: a block for every `block_size` tokens. The prefix cache names these blocks, so that every
    plan has this group first, with no layers and blocks of no bytes where no layer needs it. Latent
    attention is full attention with other bytes.
    window: the same for a sliding window's tokens only.
    state: a slot for every running sequence, one for trial steps, and snapshots.
    """

    kind: Literal["full", "window", "state"]
    layers: tuple[int, ...]
    block_size: int
    """Tokens per block, and between two ends of blocks at which a snapshot may be taken."""
    unit_bytes: int
    """Bytes of a block, or of a slot, over all layers."""
    num_blocks: int = 0
    window: int | None = None
    """In tokens, the current one included."""
    num_slots: int = 0
    """Slots that are no snapshots."""
    num_snapshots: int = 0

    @property
    def num_units(self) -> int:
        """Blocks, or slots."""
        return self.num_slots + self.num_snapshots if self.kind == "state" else self.num_blocks

    @property
    def nbytes(self) -> int:
        return self.num_units * self.unit_bytes

    @property
    def bytes_per_token(self) -> float:
        """What one more token of a sequence takes for as long as the sequence runs."""
        return self.unit_bytes / self.block_size if self.kind == "full" else 0.0

    @property
    def resumes_at(self) -> Literal["every block", "a cached window", "a snapshot"]:
        """After which full blocks of a cached prefix a sequence can be resumed: all of them, those
        before which the blocks of a whole window are cached, or those with a snapshot."""
        kinds: Mapping[str, Literal["every block", "a cached window", "a snapshot"]] = {
            "full": "every block",
            "window": "a cached window",
            "state": "a snapshot",
        }
        return kinds[self.kind]

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that a sequence of this length holds."""
        if self.kind == "state":
            return 0
        blocks = -(-num_tokens // self.block_size)
        if self.window is None:
            return blocks
        return min(blocks, -(-self.window // self.block_size) + 1)

    def bytes_of(self, num_tokens: int) -> int:
        """Bytes that a sequence of this length holds, which is what a copy of it takes: to resume
        it elsewhere, to go on with it twice."""
        units = 1 if self.kind == "state" else self.blocks_of(num_tokens)
        return units * self.unit_bytes


def with_num_blocks(
    groups: Sequence[CacheGroupPlan], num_blocks: int
) -> tuple[CacheGroupPlan, ...]:
    """The same groups with another number of blocks in the full one."""
    return tuple(evolve(g, num_blocks=num_blocks) if g.kind == "full" else g for g in groups)
