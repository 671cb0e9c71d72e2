"""llama.cpp's importance matrices, both forms: the old `.dat` and GGUF. Imports no torch.

An entry has the sums of squares that each column of a matrix was multiplied by, and how often; its
mean is the column's importance (https://github.com/ggml-org/llama.cpp/tree/master/tools/imatrix).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define

from inferno.contracts import DenseMatrices
from inferno.errors import CheckpointError, OptionError
from inferno_gguf.names import names_of

if TYPE_CHECKING:
    import numpy as np

_MAGIC = b"GGUF"
_SUMS, _COUNTS = ".in_sum2", ".counts"
_MOST_ENTRIES, _MOST_NAME, _MOST_VALUES = 1 << 20, 256, 1 << 28
_MAKE = "Make it again with llama-imatrix."


def read(path: Path, matrices: DenseMatrices) -> Mapping[str, np.ndarray] | None:
    """Return the importance of each matrix's columns, by module path; None if the file is neither
    form. See `contracts.CheckpointFormat.importance`."""
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_MAGIC))
    except OSError as error:
        raise OptionError(f"imatrix {path}: {error.strerror}", "Check the file.") from error
    entries = _of_gguf(path) if start == _MAGIC else _of_dat(path)
    if entries is None:
        return None
    weights: dict[str, np.ndarray] = {}
    for module, name in names_of(matrices).items():
        stored = entries.get(f"{name.path}.weight")
        if stored is None:
            continue
        columns = matrices.shapes[module][1]
        if stored.size % columns or not _fits(stored.size // columns, name.member):
            raise OptionError(
                f"imatrix {path}: {name.path} has {stored.size} values, the model's matrix "
                f"{columns} columns",
                "It was made of another model: name the one of this model.",
            )
        rows = stored.reshape(-1, columns)
        weights[module] = rows[name.member or 0 if len(rows) > 1 else 0]
    if not weights:
        raise OptionError(
            f"imatrix {path} has no entry for any matrix of this model: it has "
            f"{', '.join(list(entries)[:3])}",
            "It was made of another model: name the one of this model.",
        )
    return weights


def _fits(rows: int, member: int | None) -> bool:
    """Whether an entry with that many rows has one for this matrix."""
    return rows == 1 if member is None else member < rows


def _of_gguf(path: Path) -> dict[str, np.ndarray]:
    import numpy as np

    from inferno_gguf.reader import GgufFile

    try:
        file = GgufFile.open(path)
    except CheckpointError as error:
        raise OptionError(f"imatrix {path}: {error.cause}", _MAKE) from error
    if file.metadata.get("general.type", "imatrix") != "imatrix":
        raise OptionError(
            f"imatrix {path} is a GGUF file of a {file.metadata['general.type']}",
            "Name the file that llama-imatrix wrote.",
        )
    arrays: dict[str, np.ndarray] = {}
    for name, stored in file.tensors.items():
        if not name.endswith((_SUMS, _COUNTS)):
            continue
        if stored.type.dtype != "float32":
            raise OptionError(f"imatrix {path}: {name} is not of float32", _MAKE)
        pages, begin = file.pages_of(stored)
        raw = bytes(memoryview(pages)[begin : begin + stored.nbytes])
        arrays[name] = np.frombuffer(raw, dtype=f"{file.order}f4").astype(np.float32)
    entries: dict[str, np.ndarray] = {}
    for name, sums in arrays.items():
        if not name.endswith(_SUMS):
            continue
        base = name.removesuffix(_SUMS)
        counts = arrays.get(base + _COUNTS)
        if counts is None or not counts.size or sums.size % counts.size:
            raise OptionError(f"imatrix {path}: {base} has no counts for its sums", _MAKE)
        each = sums.reshape(len(counts), -1)
        rounded = np.rint(counts)[:, None]
        # An expert that saw no token has no importance: its columns count alike.
        mean = np.where(rounded > 0, each / np.maximum(rounded, 1), 1.0)
        entries[base] = _checked(path, base, mean.astype(np.float32).reshape(-1))
    if not entries:
        raise OptionError(
            f"imatrix {path} is a GGUF file without an importance matrix",
            "Name the file that llama-imatrix wrote.",
        )
    return entries


def _of_dat(path: Path) -> dict[str, np.ndarray] | None:
    """Read the old form; None if the first entry cannot be one."""
    import numpy as np

    data = _Bytes(path.read_bytes())
    entries: dict[str, np.ndarray] = {}
    try:
        count = data.integer()
        if not 0 < count < _MOST_ENTRIES:
            return None
        for _ in range(count):
            size = data.integer()
            if not 0 < size < _MOST_NAME:
                raise ValueError(f"an entry's name of {size} bytes")
            name = data.take(size).decode()
            calls, values = data.integer(), data.integer()
            if not 0 < values < _MOST_VALUES:
                raise ValueError(f"{name} with {values} values")
            sums = np.frombuffer(data.take(4 * values), dtype="<f4").astype(np.float32)
            entries[name] = _checked(path, name, sums / max(calls, 1))
    except ValueError as error:
        if not entries:
            return None
        raise OptionError(f"imatrix {path} is damaged: {error}", _MAKE) from error
    return entries


def _checked(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """Return importances. Raises OptionError if one is negative or not finite."""
    import numpy as np

    if not np.isfinite(values).all() or (values < 0).any():
        raise OptionError(f"imatrix {path}: {name} has values that are not importances", _MAKE)
    return values


@define
class _Bytes:
    """A file's content, read from the start."""

    raw: bytes
    position: int = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes. Raises ValueError at the end."""
        end = self.position + count
        if end > len(self.raw):
            raise ValueError("the file ends in an entry")
        chunk, self.position = self.raw[self.position : end], end
        return chunk

    def integer(self) -> int:
        return int(struct.unpack("<i", self.take(4))[0])
