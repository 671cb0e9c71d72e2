"""Replays small decode steps without Python: recorded once, then run again on the same memory.

With few tokens in a step, calling a few hundred operators costs more than a packed model's
arithmetic. A kernel provider that can record (`contracts.KernelProvider.record`) notes the
operators of a trial step, of padding rows, with the addresses they read and wrote; steps of that
shape write their inputs to those addresses and run the list again. A step that runs any other torch
operator is not recorded: a replay would skip it.

Intermediate results are in an arena. The recordings of all shapes share its memory, since only one
runs at a time; within a step, a result's memory is reused as soon as no tensor refers to it.

Suffixes: T tokens of the step (one per sequence), M blocks, V vocabulary.
"""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inferno.contracts import Recording
from inferno.core.runner.tables import StepArrays
from inferno.nn.batch import Batch

MAX_TOKENS = 64
"""With more tokens, the operators take far longer than calling them."""

_ALIGNMENT = 64
_CHUNK = 4 * 2**20

Compute = Callable[[Batch], Tensor]
"""Maps a batch to the logits of its tokens."""
Record = Callable[[], Recording]
Array = np.ndarray[Any, Any]


@frozen(eq=False)
class Shape:
    """A recorded step of T sequences with at most M blocks each: its inputs and logits, at fixed
    addresses."""

    batch: Batch
    logits_TV: Tensor
    recording: Recording


@define(eq=False)
class Replays:
    """The recordings of one model."""

    compute: Compute
    record: Record
    block_size: int
    max_model_len: int
    windows: Sequence[int] = ()
    """The sliding windows that have a cache group."""
    trial_slot: int | None = None
    """The slot of padding rows' recurrent states, if the model has any."""
    prepare: Callable[[Batch], None] = lambda batch: None
    """Computes what is cached on first use, such as tables by context length: inside a recorded
    step it would be foreign."""
    possible: bool = True
    """False once a step used a foreign operator: every later one would too."""
    _shapes: dict[tuple[int, int], Shape] = field(factory=dict)
    _arena: Arena = field(factory=lambda: Arena())

    @property
    def shapes(self) -> set[tuple[int, int]]:
        """(sequences, blocks of a table) of each recorded step."""
        return set(self._shapes)

    @property
    def nbytes(self) -> int:
        """Memory of the recorded steps' intermediate results."""
        return self._arena.nbytes

    def run(self, arrays: StepArrays) -> Tensor | None:
        """Return the step's logits, valid until the next step. None if it must be computed in the
        usual way: it is large, or not every sequence computes and samples exactly one token."""
        tokens, blocks = arrays.tables.shape
        if not self.possible or tokens > MAX_TOKENS:
            return None
        if not tokens == len(arrays.token_ids) == len(arrays.last):
            return None
        width = max(8, 1 << (blocks - 1).bit_length())
        if (shape := self._shapes.get((tokens, width))) is None:
            if (shape := self._recorded(self._batch(tokens, width))) is None:
                self.possible = False
                return None
            self._shapes[tokens, width] = shape
        _write(shape.batch, arrays)
        shape.recording.replay()
        return shape.logits_TV

    def _recorded(self, batch: Batch) -> Shape | None:
        self.prepare(batch)
        for _ in range(2):  # what is cached on first use (a bias in float32) is foreign once
            watch = _Watch(self._arena)
            with self.record() as recording, watch:
                logits_TV = self.compute(batch)
            if not watch.foreign:
                return Shape(batch, self._arena.borrowed(logits_TV), recording)
        return None

    def _batch(self, tokens: int, width: int) -> Batch:
        """Return a step of padding rows: it changes nothing."""
        longest = min(
            width * self.block_size, self.max_model_len
        )  # tables that depend on it are made for all its steps

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64)

        def slots(value: int) -> Tensor:
            return torch.full((tokens,), value)

        return Batch(
            token_ids_T=zeros(tokens),
            positions_T=zeros(tokens),
            slots_T=slots(-1),
            query_starts=range(tokens + 1),
            context_lens=[longest] * tokens,
            blocks_SM=zeros(tokens, width),
            block_size=self.block_size,
            query_starts_S1=torch.arange(tokens + 1, dtype=torch.int32),
            context_lens_S=torch.zeros(tokens, dtype=torch.int32),
            state_slots_S=None if self.trial_slot is None else slots(self.trial_slot),
            captured=True,
        ).with_windows({window: (slots(-1), zeros(tokens, width)) for window in self.windows})


def _write(batch: Batch, arrays: StepArrays) -> None:
    batch.token_ids_T.numpy()[:] = arrays.token_ids
    batch.positions_T.numpy()[:] = arrays.positions
    batch.context_lens_S.numpy()[:] = arrays.context_lens
    if batch.state_slots_S is not None:
        batch.state_slots_S.numpy()[:] = arrays.rows
    for window, slots, tables in (
        (None, arrays.slots, arrays.tables),
        *((window, *tables) for window, tables in arrays.windows.items()),
    ):
        group = batch.for_window(window)
        group.slots_T.numpy()[:] = slots
        group.blocks_SM.numpy()[:, : tables.shape[1]] = tables


class Arena:
    """Memory at fixed addresses, in pieces that become free when the last tensor on them is
    gone."""

    def __init__(self) -> None:
        self._chunks: list[Array] = []
        self._free: list[tuple[int, int, int]] = []
        """(chunk, begin, end), sorted. Adjacent pieces are merged."""
        self._given: list[tuple[int, int, int]] = []
        """Also free, but not merged yet: a finalizer may run at any point, even inside `_take`."""

    @property
    def nbytes(self) -> int:
        return sum(len(chunk) for chunk in self._chunks)

    def like(self, tensor: Tensor) -> Tensor:
        """Allocate an uninitialized tensor of the same shape, strides and dtype."""
        nbytes = -(-max(1, tensor.untyped_storage().nbytes()) // _ALIGNMENT) * _ALIGNMENT
        chunk, begin, end = self._take(nbytes)
        piece = self._chunks[chunk][begin:end]
        # torch holds the piece for as long as the storage exists.
        weakref.finalize(piece, self._given.append, (chunk, begin, end)).atexit = False
        return torch.from_numpy(piece).view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def borrowed(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the same memory that does not keep it: it may be reused once `tensor`
        is gone."""
        address = tensor.untyped_storage().data_ptr()
        for chunk in self._chunks:
            if (offset := address - chunk.ctypes.data) in range(len(chunk)):
                whole = torch.from_numpy(chunk)[
                    offset : offset + tensor.untyped_storage().nbytes()
                ].view(tensor.dtype)
                return whole.as_strided(
                    tensor.shape, tensor.stride(), whole.storage_offset() + tensor.storage_offset()
                )
        return tensor  # a parameter, or another tensor of the model

    def _take(self, nbytes: int) -> tuple[int, int, int]:
        while self._given:
            self._give(*self._given.pop())
        for i, (chunk, begin, end) in enumerate(self._free):
            if end - begin >= nbytes:
                self._free[i : i + 1] = (
                    [(chunk, begin + nbytes, end)] if end - begin > nbytes else []
                )
                return chunk, begin, begin + nbytes
        memory = np.empty(max(nbytes, _CHUNK) + _ALIGNMENT, np.uint8)
        self._chunks.append(memory[-memory.ctypes.data % _ALIGNMENT :][: max(nbytes, _CHUNK)])
        self._free.append((len(self._chunks) - 1, 0, len(self._chunks[-1])))
        return self._take(nbytes)

    def _give(self, chunk: int, begin: int, end: int) -> None:
        i = bisect.bisect(self._free, (chunk, begin, end))
        if i < len(self._free) and self._free[i][:2] == (chunk, end):
            end = self._free.pop(i)[2]
        if i and self._free[i - 1][0] == chunk and self._free[i - 1][2] == begin:
            i -= 1
            begin = self._free.pop(i)[1]
        self._free.insert(i, (chunk, begin, end))


class _Watch(TorchDispatchMode):
    """Watches every torch operator: allocations are served by the arena, views are allowed,
    anything else is `foreign`."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena = arena
        self.foreign = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: asking torch's compiler to skip this mode would import it, which takes more than a
        second in the first step."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _ALLOCATIONS:
            return self._arena.like(result)
        if not _is_view(func, result, (args, kwargs)):
            self.foreign = self.foreign or str(func)
        return result


def _is_view(func: Any, result: Any, given: Any) -> bool:
    """Whether an operator only returned views of its inputs. Its schema cannot tell: in inference
    mode `x.float()` is one operator, declared as a view even where it copies. An operator that
    returns nothing has side effects."""
    returns = func._schema.returns
    if not returns or not all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    ):
        return False
    memory = {t.untyped_storage().data_ptr() for t in tree_leaves(given) if isinstance(t, Tensor)}
    return all(t.untyped_storage().data_ptr() in memory for t in tree_leaves(result))


_ALLOCATIONS = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.new_empty,
    torch.ops.aten.empty_strided,
)
