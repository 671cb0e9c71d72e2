"""Marlin weights of Hugging Face checkpoints, for inferno. Imports no torch until one is loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import HeldMatrix, QuantScheme, StoredMatrix, refusal_of
from inferno_marlin.packing import Packing

refuses = refusal_of(Packing.of)


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """Return the matrix in a public layout."""
    packing = Packing.of(stored)
    return HeldMatrix(
        layout=packing.layout.name,
        shape=(packing.rows, packing.columns),
        nbytes=packing.layout.nbytes(packing.rows, packing.columns),
        unit=(1, packing.layout.group),
    )


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [
        QuantScheme(name="marlin", refuses=refuses, holds=holds, load="inferno_marlin.weight:load")
    ]
