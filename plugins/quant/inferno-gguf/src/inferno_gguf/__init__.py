"""GGUF files for inferno, and ggml's block-quantized weights. Imports no torch, no gguf-py until a
file is read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from inferno import hookimpl
from inferno.contracts import AdapterFormat, CheckpointFormat, QuantScheme, Writer
from inferno_gguf.defaults import DEFAULTS
from inferno_gguf.ggml import PACKABLE, PACKED, RECODED, UNPACKED
from inferno_gguf.kinds import PLAIN, TARGETS
from inferno_gguf.mixes import mixes
from inferno_gguf.sizes import holds, holds_dense, holds_recoded, packs, refuses

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.contracts import (
        DenseCheckpoint,
        HeldMatrix,
        Output,
        StoredMatrix,
        WriteOptions,
    )
    from inferno.nn import Weight


@hookimpl
def inferno_checkpoint_formats() -> list[CheckpointFormat]:
    return [
        CheckpointFormat(
            name="gguf",
            matches="inferno_gguf.files:matches",
            open="inferno_gguf.checkpoint:GgufCheckpoint.open",
            dialect=DEFAULTS,
            mixes=mixes(),
            importance="inferno_gguf.imatrix:read",
            encoders="inferno_gguf.encoders:encoders",
            join="inferno_gguf.encoders:join",
        )
    ]


@hookimpl
def inferno_adapter_formats() -> list[AdapterFormat]:
    return [
        AdapterFormat(
            name="gguf",
            matches="inferno_gguf.files:matches",
            open="inferno_gguf.adapter:GgufAdapter.open",
        )
    ]


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    """One scheme per block type, under ggml's name, so that `inferno explain` shows a file's
    types."""
    return [
        *(_scheme(name, holds, "blocks", **{"layout": name, **_packing(name)}) for name in PACKED),
        *(_scheme(name, holds_recoded, "recoded") for name in RECODED),
        *(_scheme(name, holds_dense, "unpacked") for name in UNPACKED),
    ]


def _scheme(
    name: str, holds: Callable[[str, StoredMatrix, str], HeldMatrix], module: str, **more: Any
) -> QuantScheme:
    return QuantScheme(
        name=name,
        refuses=partial(refuses, name),
        holds=partial(holds, name),
        load=f"inferno_gguf.{module}:load",
        **more,
    )


def _packing(name: str) -> dict[str, Any]:
    """Return the fields of a scheme that quantizes in situ; none if it cannot."""
    if name not in PACKABLE:
        return {}
    return {
        "pack": partial(_pack, name),
        "packs": partial(packs, name),
        "layout": name,
        "weighted": True,
        "instead": PACKABLE[name],
    }


@hookimpl
def inferno_writers() -> list[Writer]:
    """One per type and mix, under llama.cpp's names."""
    return [
        Writer(
            name=name,
            describe=f"a GGUF file in {name.upper()}",
            output=partial(_write, name),
            weighted=name not in PLAIN,
        )
        for name in TARGETS
    ]


def _write(main: str, source: DenseCheckpoint, options: WriteOptions, name: str) -> Output:
    from inferno_gguf.writer import write

    return write(main, source, options, name)


def _pack(layout: str, weight_OI: Tensor, **given: Any) -> Weight:
    from inferno_gguf.quantize import pack

    return pack(layout, weight_OI, **given)
