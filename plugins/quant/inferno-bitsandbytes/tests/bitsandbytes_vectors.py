"""Write vectors.safetensors, beside this file: matrices as bitsandbytes stores them, and the values
of their last four rows. Run by hand, with the version that the file's metadata name:

    pip install bitsandbytes==0.50.2
    python plugins/quant/inferno-bitsandbytes/tests/bitsandbytes_vectors.py
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

KINDS = ("nf4", "fp4")
CASES = [
    *(
        (kind, size, nested, 4, 128)
        for kind in ("nf4", "fp4")
        for size in (64, 128)
        for nested in (0, 1)
    ),
    ("nf4", 128, 0, 3, 96),  # blocks that do not end with a row
    ("nf4", 64, 1, 68, 256),  # more than one nested block
]


def main() -> None:
    bnb: Any = import_module("bitsandbytes.functional")
    plain: Any = import_module("bitsandbytes.backends.default.ops")
    stored: dict[str, Tensor] = {}
    for kind, size, nested, rows, columns in CASES:
        generator = torch.Generator().manual_seed(len(stored))
        weight = torch.randn(rows, columns, generator=generator) * 0.05
        codes, state = bnb.quantize_4bit(
            weight, blocksize=size, quant_type=kind, compress_statistics=bool(nested)
        )
        name = f"{kind}_{size}_{'nested' if nested else 'plain'}_{rows}x{columns}"
        stored[f"{name}.weight"] = codes
        for part, tensor in state.as_dict(packed=True).items():
            stored[f"{name}.weight.{part}"] = tensor
        if columns % size:
            # The kernel for CPUs of 0.50.2 takes the scales of other blocks here.
            values = plain._dequantize_4bit_compute(
                codes.flatten(), state.absmax, state.code, size, (rows, columns), torch.float32
            )
        else:
            values = bnb.dequantize_4bit(codes, state)
        stored[f"{name}.values"] = values[-4:]
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)) * 0.05
    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    stored |= {"int8.weight": codes, "int8.SCB": scales}
    stored["int8.values"] = bnb.int8_vectorwise_dequant(codes, scales)[-4:]
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in stored.items()},
        Path(__file__).with_name("vectors.safetensors"),
        {"bitsandbytes": version("bitsandbytes")},
    )


if __name__ == "__main__":
    main()
