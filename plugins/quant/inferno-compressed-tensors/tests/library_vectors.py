"""Write vectors.safetensors, beside this file: matrices as compressed-tensors stores them, and the
values that it reads. Run by hand, with the version that the file's metadata name:

    pip install compressed-tensors==0.20.0
    python plugins/quant/inferno-compressed-tensors/tests/library_vectors.py
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

CASES = [
    # bits, group, symmetric
    (4, 32, True),
    (4, 32, False),
    (8, 64, True),
    (8, 32, False),
]
ROWS, COLUMNS = 32, 64


def main() -> None:
    packing: Any = import_module("compressed_tensors.compressors.pack_quantized.helpers")
    forward: Any = import_module("compressed_tensors.quantization.lifecycle.forward")
    arguments: Any = import_module("compressed_tensors.quantization").QuantizationArgs
    stored: dict[str, Tensor] = {}
    for number, (bits, group, symmetric) in enumerate(CASES):
        random = torch.Generator().manual_seed(number)
        half = 2 ** (bits - 1)
        scales_OG = (torch.rand(ROWS, COLUMNS // group, generator=random) / half + 0.01).half()
        zeros_OG = torch.zeros(scales_OG.shape, dtype=torch.int8)
        if not symmetric:
            zeros_OG = torch.randint(-half, half, zeros_OG.shape, generator=random).to(torch.int8)
        weight_OI = torch.randn(ROWS, COLUMNS, generator=random)
        given = arguments(
            num_bits=bits, type="int", symmetric=symmetric, strategy="group", group_size=group
        )
        scales = {"scale": scales_OG.float(), "zero_point": zeros_OG}
        codes_OI = forward.quantize(x=weight_OI, args=given, dtype=torch.int8, **scales)
        name = f"{bits}_{group}_{symmetric:d}"
        stored[f"{name}.values"] = forward.dequantize(x_q=codes_OI, args=given, **scales)
        stored[f"{name}.weight_packed"] = packing.pack_to_int32(codes_OI, bits)
        stored[f"{name}.weight_scale"] = scales_OG
        stored[f"{name}.weight_shape"] = torch.tensor(weight_OI.shape)
        if not symmetric:
            packed = packing.pack_to_int32(zeros_OG, bits, packed_dim=0)
            stored[f"{name}.weight_zero_point"] = packed
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in stored.items()},
        Path(__file__).with_name("vectors.safetensors"),
        {"compressed-tensors": version("compressed-tensors")},
    )


if __name__ == "__main__":
    main()
