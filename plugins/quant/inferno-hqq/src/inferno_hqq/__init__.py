"""HQQ weights of Hugging Face checkpoints, for inferno. Imports no torch until one is loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DTYPE_BYTES, HeldMatrix, QuantScheme, StoredMatrix, refusal_of
from inferno_hqq.packing import Packing

refuses = refusal_of(Packing.of)


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """Return the matrix in a public layout, or dense. Headers tell its size, but not its shape."""
    packing = Packing.of(stored)
    values, layout = packing.groups * packing.group, packing.layout
    if layout is None:
        nbytes = values * DTYPE_BYTES[dtype]
        return HeldMatrix(shape=None, nbytes=nbytes, values=values, unit=(1, 1))
    nbytes, unit = layout.nbytes(packing.groups, packing.group), (1, packing.group)
    return HeldMatrix(layout=layout.name, shape=None, nbytes=nbytes, values=values, unit=unit)


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [QuantScheme(name="hqq", refuses=refuses, holds=holds, load="inferno_hqq.weight:load")]
