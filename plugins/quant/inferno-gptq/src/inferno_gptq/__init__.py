"""GPTQ weights of Hugging Face checkpoints, for inferno. Imports no torch until one is loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import HeldMatrix, QuantScheme, StoredMatrix, refusal_of
from inferno_gptq.packing import Packing

refuses = refusal_of(Packing.of)


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """Return the matrix in a public layout; with act-order, beside the order of its columns."""
    packing = Packing.of(stored)
    nbytes = packing.layout.nbytes(packing.rows, packing.columns)
    return HeldMatrix(
        layout=packing.layout.name,
        shape=(packing.rows, packing.columns),
        nbytes=nbytes + (8 * packing.columns if packing.ordered else 0),
    )


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [QuantScheme(name="gptq", refuses=refuses, holds=holds, load="inferno_gptq.weight:load")]
