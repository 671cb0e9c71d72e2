"""GPTQ weights of Hugging Face checkpoints, for inferno. Imports no torch until one is loaded."""

from __future__ import annotations

from functools import partial

from inferno import hookimpl
from inferno.contracts import (
    Encoding,
    HeldMatrix,
    QuantScheme,
    StoredMatrix,
    WriteOptions,
    Writer,
    refusal_of,
)
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
        unit=(1, 0 if packing.ordered else packing.layout.group),
        along=packing.along,
    )


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [QuantScheme(name="gptq", refuses=refuses, holds=holds, load="inferno_gptq.weight:load")]


@hookimpl
def inferno_writers() -> list[Writer]:
    return [
        Writer(
            name=f"gptq-int{bits}",
            describe=f"a Hugging Face folder in GPTQ, {bits} bits",
            encoding=partial(_encoding, bits),
            options=frozenset({"group", "act_order", "damping"}),
            groups=(128, 64, 32),
            calibrated=True,
        )
        for bits in (4, 8)
    ]


def _encoding(bits: int, options: WriteOptions) -> Encoding:
    from inferno_gptq.encoding import GptqEncoding

    return GptqEncoding.of(bits, options)
