"""AWQ weights of Hugging Face checkpoints, for inferno. Imports no torch until one is loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import HeldMatrix, QuantScheme, StoredMatrix, Writer, refusal_of
from inferno_awq.packing import Packing

refuses = refusal_of(Packing.of)


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """Return the matrix in a public layout."""
    packing = Packing.of(stored)
    return HeldMatrix(
        layout=packing.layout.name,
        shape=(packing.rows, packing.columns),
        nbytes=packing.layout.nbytes(packing.rows, packing.columns),
        unit=(1, packing.layout.group),
        along=packing.along,
    )


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [QuantScheme(name="awq", refuses=refuses, holds=holds, load="inferno_awq.weight:load")]


@hookimpl
def inferno_writers() -> list[Writer]:
    return [
        Writer(
            name="awq-int4",
            describe="a Hugging Face folder in AWQ, 4 bits",
            encoding="inferno_awq.encoding:AwqEncoding.of",
            options=frozenset({"group"}),
            groups=(128, 64, 32),
            calibrated=True,
        )
    ]
