"""Small decode steps without Python: recorded once, then run again on the same memory.

With one or a few tokens in a step, the calls of a few hundred operators cost more than a packed model's arithmetic. A kernel
provider that can record (`contracts.KernelProvider.record`) notes the operators of a step, each with the addresses it
read and wrote; the next step of that shape writes its inputs to those addresses and runs the list again. A step in which
anything but the provider's operators touched a tensor is not recorded: it would be left out.

Suffixes: T tokens of the step (one per sequence), M blocks, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inferno.batch import Batch
from inferno.cache import KVCache
from inferno.contracts import Recording

MAX_TOKENS = 4
"""Above, the operators take far longer than their calls, and a recording keeps every intermediate result."""

Compute = Callable[[Batch], Tensor]
"""A batch to the logits of its tokens."""
Record = Callable[[], Recording]
Array = np.ndarray[Any, Any]


@frozen(eq=False)
class Shape:
    """Inputs at fixed addresses for steps of T sequences and up to M blocks each, and what they are computed to."""

    batch: Batch
    logits_TV: Tensor
    recording: Recording
    held: list[Tensor]
    """Every intermediate result: the addresses stay theirs."""


@define(eq=False)
class Replays:
    """The recordings of one model."""

    compute: Compute
    record: Record
    cache: KVCache
    block_size: int
    max_model_len: int
    prepare: Callable[[Batch], None] = lambda batch: None
    """Makes what is made on first use, tables by context length: within a recorded step it would be foreign."""
    _shapes: dict[tuple[int, int], Shape | None] = field(factory=dict)
    """None: it cannot be recorded."""

    def run(
        self, token_ids: Array, positions: Array, slots: Array, context_lens: list[int], tables: Array,
        windows: Mapping[int, tuple[Array, Array]] = {},
    ) -> Tensor | None:  # fmt: skip
        """The step's logits, valid until the next step; None if it must be computed in the usual way. `windows` has the slots
        and tables of each, the same ones in every step."""
        tokens, blocks = tables.shape
        width = max(8, 1 << (blocks - 1).bit_length())
        key = (tokens, width)
        if key not in self._shapes:
            batch = self._batch(tokens, width, windows)
            _write(batch, token_ids, positions, slots, context_lens, tables, windows)
            self._shapes[key] = shape = self._recorded(batch)
        elif (shape := self._shapes[key]) is not None:
            _write(shape.batch, token_ids, positions, slots, context_lens, tables, windows)
            shape.recording.replay()
        return None if shape is None else shape.logits_TV

    def _recorded(self, batch: Batch) -> Shape | None:
        self.prepare(batch)
        for _ in range(2):  # what is made on first use (a bias in float32) is foreign once
            watch = _Watch()
            with self.record() as recording, watch:
                logits_TV = self.compute(batch)
            if not watch.foreign:
                return Shape(batch, logits_TV, recording, watch.allocated)
        return None

    def _batch(self, tokens: int, width: int, windows: Collection[int]) -> Batch:
        longest = min(width * self.block_size, self.max_model_len)  # tables that depend on it are made for all its steps


        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64)

        return Batch(
            token_ids_T=zeros(tokens), positions_T=zeros(tokens), slots_T=zeros(tokens), query_starts=range(tokens + 1),
            context_lens=[longest] * tokens, blocks_SM=zeros(tokens, width), block_size=self.block_size, cache=self.cache,
            query_starts_S1=torch.arange(tokens + 1, dtype=torch.int32),
            context_lens_S=torch.zeros(tokens, dtype=torch.int32),
        ).with_windows({window: (zeros(tokens), zeros(tokens, width)) for window in windows})  # fmt: skip


def _write(
    batch: Batch, token_ids: Array, positions: Array, slots: Array, context_lens: list[int], tables: Array,
    windows: Mapping[int, tuple[Array, Array]],
) -> None:  # fmt: skip
    batch.token_ids_T.numpy()[:] = token_ids
    batch.positions_T.numpy()[:] = positions
    batch.context_lens_S.numpy()[:] = context_lens
    for window, (own_slots, own_tables) in [(None, (slots, tables)), *windows.items()]:
        batch.of(window).slots_T.numpy()[:] = own_slots
        batch.of(window).blocks_SM.numpy()[:, : tables.shape[1]] = own_tables


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every torch operator: allocations are kept, views are free, anything else is `foreign`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocated: list[Tensor] = []
        self.foreign = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To be skipped by torch's compiler would import it: more than a second, in the first step."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _ALLOCATIONS:
            self.allocated.append(result)
        elif not _is_view(func, result, (args, kwargs)):
            self.foreign = self.foreign or str(func)
        return result


def _is_view(func: Any, result: Any, given: Any) -> bool:
    """Whether an operator only looked at the memory it was given. Its schema does not say: in inference mode `x.float()` is one
    operator, a copy or not, that is declared as the view it may be. One that returns nothing was called for what it does."""
    returns = func._schema.returns
    if not returns or not all(r.alias_info is not None and not r.alias_info.is_write for r in returns):
        return False
    memory = {t.untyped_storage().data_ptr() for t in tree_leaves(given) if isinstance(t, Tensor)}
    return all(t.untyped_storage().data_ptr() in memory for t in tree_leaves(result))


_ALLOCATIONS = (torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.new_empty, torch.ops.aten.empty_strided)
