"""Cache groups: layers with the same cache needs share blocks or slots."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import evolve, frozen

from inferno.contracts import DTYPE_BYTES, AttentionSpec, CacheTensor, DType, StateSpec
from inferno.errors import CheckpointError


def nbytes_of(tensors: Mapping[str, CacheTensor]) -> int:
    """Return the bytes of one block, or of one sequence's state."""
    return sum(math.prod(t.shape) * DTYPE_BYTES[t.dtype] for t in tensors.values())


@frozen(kw_only=True)
class StateUse:
    """The layers that keep one kind of recurrent state."""

    spec: StateSpec
    layers: tuple[int, ...]
    cache: Mapping[str, CacheTensor]
    """What each layer keeps per sequence: the spec's tensors, with the compute dtype filled in."""


def state_uses(
    specs: Mapping[int, AttentionSpec | StateSpec], dtype: DType
) -> tuple[StateUse, ...]:
    """Return the recurrent layers among a model's layers. Raises CheckpointError if no layer keeps
    anything."""
    if not specs:
        raise CheckpointError(
            "the model has neither attention layers nor recurrent states",
            "inferno cannot run it: choose another model.",
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
    """One group of layers: what it keeps, and after which prefixes it can resume.

    full: a block for every `block_size` tokens. Every plan has this group, with empty blocks if no
    layer needs it. Latent attention is full attention with another layout.
    window: the same for a sliding window's tokens only.
    chunk: the same for the tokens of the chunk that a sequence's next token is in.
    state: a slot for every running sequence, one for trial steps, one for each draft of a step, and
    snapshots.
    """

    kind: Literal["full", "window", "chunk", "state"]
    layers: tuple[int, ...]
    block_size: int
    """Tokens per block. Snapshots may be taken at the ends of blocks."""
    unit_bytes: int
    """Bytes of a block or slot, over all layers."""
    num_blocks: int = 0
    window: int | None = None
    """In tokens, the current one included; or a chunk's."""
    num_slots: int = 0
    """Slots that are not snapshots."""
    num_drafts: int = 0
    """Those of them for the states after drafts: how many drafts a step may verify in all."""
    num_snapshots: int = 0

    @property
    def num_units(self) -> int:
        """Number of blocks or slots."""
        return self.num_slots + self.num_snapshots if self.kind == "state" else self.num_blocks

    @property
    def nbytes(self) -> int:
        return self.num_units * self.unit_bytes

    @property
    def bytes_per_token(self) -> float:
        """Bytes that each further token of a running sequence takes."""
        return self.unit_bytes / self.block_size if self.kind == "full" else 0.0

    def blocks_of(self, num_tokens: int) -> int:
        """Return the number of blocks that a sequence of this length holds."""
        if self.kind == "state":
            return 0
        blocks = -(-num_tokens // self.block_size)
        if self.window is None:
            return blocks
        return min(blocks, -(-self.window // self.block_size) + 1)


def with_num_blocks(
    groups: Sequence[CacheGroupPlan], num_blocks: int
) -> tuple[CacheGroupPlan, ...]:
    """Return the same groups with `num_blocks` blocks in the full one."""
    return tuple(evolve(g, num_blocks=num_blocks) if g.kind == "full" else g for g in groups)
