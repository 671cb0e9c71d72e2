"""Memory at fixed addresses, for results that are computed again and again."""

from __future__ import annotations

import bisect
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64
_CHUNK = 4 * 2**20

Array = np.ndarray[Any, Any]


class Arena:
    """Memory at fixed addresses, in pieces that become free when no tensor refers to them any
    more."""

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
        """Return a tensor on the same memory that does not keep it in use: the memory may be reused
        once `tensor` is gone."""
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

    def spoil(self) -> None:
        """Overwrite all free memory, so that floating-point elements read from it are NaN."""
        self._collect()
        for chunk, begin, end in self._free:
            self._chunks[chunk][begin:end] = 0xFF

    def _take(self, nbytes: int) -> tuple[int, int, int]:
        self._collect()
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

    def _collect(self) -> None:
        while self._given:
            self._give(*self._given.pop())

    def _give(self, chunk: int, begin: int, end: int) -> None:
        i = bisect.bisect(self._free, (chunk, begin, end))
        if i < len(self._free) and self._free[i][:2] == (chunk, end):
            end = self._free.pop(i)[2]
        if i and self._free[i - 1][0] == chunk and self._free[i - 1][2] == begin:
            i -= 1
            begin = self._free.pop(i)[1]
        self._free.insert(i, (chunk, begin, end))
