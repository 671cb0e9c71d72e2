"""Writers of the schemes that inferno reads and that no plugin writes, for `benchmarks/quality.py`:
bitsandbytes, HQQ, MXFP4, and int8 with activations in int8. Each value is rounded to the nearest.

Suffixes: O rows, I columns, N blocks or groups of values, G groups of a row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from inferno.catalog import Catalog, Offer
from inferno.contracts import DTYPE_BYTES, TABLES, Encoding, Seen, TensorInfo, WriteOptions, Writer

BLOCK = 64
"""Values with one scale: what bitsandbytes and HQQ have by default."""
FLOATS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of MXFP4; the same negated follow. A group of 32 shares a power of two."""


def header(tensor: Tensor) -> TensorInfo:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorInfo(dtype, tuple(tensor.shape), tensor.numel() * DTYPE_BYTES[dtype])


class Rounding(Encoding):
    """Declares what `encode` makes of zeros of the same shape."""

    columns = BLOCK
    """What the columns must be divisible by."""

    def parts(self, path: str, shape: tuple[int, int]) -> Mapping[str, TensorInfo] | str:
        if shape[1] % self.columns:
            return f"columns must be divisible by {self.columns}"
        made = self.encode(path, torch.zeros(shape), None)
        return {part: header(tensor) for part, tensor in made.items()}


@frozen
class Bitsandbytes4(Rounding):
    """`nf4` or `fp4`, without double quantization."""

    kind: str

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": self.kind,
            "llm_int8_skip_modules": list(dense),
        }

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        table = torch.tensor(TABLES[self.kind])
        blocks_N = weight_OI.reshape(-1, BLOCK)
        absmax_N = blocks_N.abs().amax(1)
        codes = nearest(blocks_N / absmax_N.clamp(min=1e-12)[:, None], table).flatten()
        state = {
            "quant_type": self.kind,
            "blocksize": BLOCK,
            "dtype": "float32",
            "shape": list(weight_OI.shape),
        }
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        return {
            "weight": (codes[::2] << 4 | codes[1::2])[:, None],
            "weight.absmax": absmax_N,
            "weight.quant_map": table,
            f"weight.quant_state.bitsandbytes__{self.kind}": text,
        }


class Bitsandbytes8(Rounding):
    """int8, a scale for each row."""

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        return {
            "quant_method": "bitsandbytes",
            "load_in_8bit": True,
            "llm_int8_threshold": 6.0,
            "llm_int8_skip_modules": list(dense),
        }

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        most_O = weight_OI.abs().amax(1).clamp(min=1e-12)
        return {
            "weight": (weight_OI * (127 / most_O)[:, None]).round().to(torch.int8),
            "SCB": most_O,
            "weight_format": torch.tensor(0, dtype=torch.uint8),
        }


class Hqq4(Rounding):
    """4 bits with fractional zero points, without HQQ's search for them."""

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        params = {"nbits": 4, "group_size": BLOCK, "axis": 1, "channel_wise": True}
        return {
            "quant_method": "hqq",
            "quant_config": {"weight_quant_params": params},
            "skip_modules": list(dense),
        }

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        blocks_N = weight_OI.reshape(-1, BLOCK)
        low_N1, high_N1 = blocks_N.amin(1, keepdim=True), blocks_N.amax(1, keepdim=True)
        scale_N1 = ((high_N1 - low_N1) / 15).clamp(min=1e-7).half()
        zero_N1 = (-low_N1 / scale_N1.float()).half()
        codes_N = (blocks_N / scale_N1.float() + zero_N1.float()).round().clamp(0, 15).byte()
        first_N, second_N = codes_N.chunk(2)
        numbers = {"nbits": 4, "group_size": BLOCK, "axis": 1}
        return {
            "W_q": first_N << 4 | second_N,
            "scale": scale_N1,
            "zero": zero_N1,
            "shape": torch.tensor(weight_OI.shape),
            "packing": torch.tensor(list(b"4bit_u8"), dtype=torch.uint8),
            **{name: torch.tensor(value, dtype=torch.int32) for name, value in numbers.items()},
        }


class Mxfp4(Rounding):
    columns = 32

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        return {"quant_method": "mxfp4", "modules_to_not_convert": list(dense)}

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        groups_OGi = weight_OI.reshape(len(weight_OI), -1, 32)
        most_OG = groups_OGi.abs().amax(2).clamp(min=2.0**-100)
        power_OG = most_OG.log2().floor() - math.log2(max(FLOATS) / 1.5)  # 6 is 1.5 times 4
        values = torch.tensor([*FLOATS, *(-value for value in FLOATS)])
        codes_OGi = nearest(groups_OGi / power_OG.exp2()[..., None], values)
        return {
            "blocks": codes_OGi[..., ::2] | codes_OGi[..., 1::2] << 4,
            "scales": (power_OG + 127).to(torch.uint8),
        }


class W8A8(Rounding):
    """int8 by int8: a scale for each row, and for each token while it runs."""

    columns = 1

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        int8 = {"num_bits": 8, "type": "int", "symmetric": True}
        group = {
            "targets": ["Linear"],
            "weights": {**int8, "strategy": "channel", "dynamic": False},
            "input_activations": {**int8, "strategy": "token", "dynamic": True},
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {"group_0": group},
            "ignore": list(dense),
        }

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        scale_O1 = weight_OI.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        codes_OI = (weight_OI / scale_O1).round().to(torch.int8)
        return {"weight": codes_OI, "weight_scale": scale_O1}


def nearest(x: Tensor, table: Tensor) -> Tensor:
    """Return the index of the nearest value in a table, uint8."""
    return (x[..., None] - table).abs().argmin(-1).to(torch.uint8)


ENCODINGS: Mapping[str, Encoding] = {
    "bitsandbytes nf4": Bitsandbytes4("nf4"),
    "bitsandbytes fp4": Bitsandbytes4("fp4"),
    "bitsandbytes int8": Bitsandbytes8(),
    "HQQ, 4 bits": Hqq4(),
    "MXFP4": Mxfp4(),
    "compressed-tensors W8A8": W8A8(),
}


def _given(encoding: Encoding, options: WriteOptions) -> Encoding:
    return encoding


def with_writers(catalog: Catalog) -> Catalog:
    """Return the catalog with a writer for each of `ENCODINGS`."""
    added = [
        Offer(Writer(name=name, describe=name, encoding=partial(_given, made)), "benchmarks")
        for name, made in ENCODINGS.items()
    ]
    return evolve(
        catalog,
        offers={**catalog.offers, "inferno_writers": (*catalog.of("inferno_writers"), *added)},
    )
