"""Answers the plan's questions from headers: which matrix a scheme reads, and what it will be in
memory. Imports no torch."""

from __future__ import annotations

from inferno.contracts import DTYPE_BYTES, HeldMatrix, Refused, StoredMatrix
from inferno_gguf.ggml import BY_NAME, RECODED


def refuses(layout: str, stored: StoredMatrix) -> str | None:
    """Read one packed matrix: a tensor of bytes whose part names the layout."""
    if set(stored.parts) != {layout} or stored.parts[layout].dtype != "uint8":
        return "it reads single tensors in ggml's block types, as GGUF files have them"
    return None


def holds(layout: str, stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """Return a matrix that stays packed."""
    [info] = stored.parts.values()
    shape, unit = _shape(layout, info.shape), (1, BY_NAME[layout].values)
    return HeldMatrix(layout=layout, shape=shape, nbytes=info.nbytes, unit=unit)


def holds_dense(layout: str, stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """Return a matrix that is unpacked at load."""
    [info] = stored.parts.values()
    kind = BY_NAME[layout]
    nbytes = info.nbytes // kind.nbytes * kind.values * DTYPE_BYTES[dtype]
    return HeldMatrix(shape=_shape(layout, info.shape), nbytes=nbytes, unit=(1, 1))


def holds_recoded(layout: str, stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """Return a matrix that becomes another packed type at load, or dense in float32."""
    if dtype == "float32":
        return holds_dense(layout, stored, dtype)
    [info] = stored.parts.values()
    kind, other = BY_NAME[layout], BY_NAME[RECODED[layout]]
    nbytes = info.nbytes // kind.nbytes * (kind.values // other.values) * other.nbytes
    shape, unit = _shape(layout, info.shape), (1, other.values)
    return HeldMatrix(layout=other.name, shape=shape, nbytes=nbytes, unit=unit)


def packs(layout: str, shape: tuple[int, int], dtype: str) -> HeldMatrix:
    """Return what a dense matrix becomes. Raises Refused unless rows are whole blocks."""
    (rows, columns), kind = shape, BY_NAME[layout]
    if columns % kind.values:
        raise Refused(f"{columns} columns are not divisible by {layout}'s blocks of {kind.values}")
    nbytes = rows * columns // kind.values * kind.nbytes
    return HeldMatrix(layout=layout, shape=shape, nbytes=nbytes, unit=(1, kind.values))


def _shape(layout: str, stored: tuple[int, ...]) -> tuple[int, int] | None:
    """Return rows and columns; None if the tensor is not a matrix, which loading refuses."""
    if len(stored) != 2:
        return None
    kind = BY_NAME[layout]
    return stored[0], stored[1] // kind.nbytes * kind.values
