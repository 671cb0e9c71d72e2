"""Packed weights on disk: what a kernel provider or an in-situ quantization made of a model's
tensors, so that the next start reads instead of computing. Imports no torch.

`PackedStore` keeps files by key; `digest` hashes a model's files for such a key.
"""

from inferno.weights.packed.file import DamagedFileError, PackedFile, Part, Place
from inferno.weights.packed.store import DEFAULT_LIMIT, Entry, PackedStore

__all__ = [
    "DEFAULT_LIMIT",
    "DamagedFileError",
    "Entry",
    "PackedFile",
    "PackedStore",
    "Part",
    "Place",
]
