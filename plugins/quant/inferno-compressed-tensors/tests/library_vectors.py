"""Write two files beside this one, as compressed-tensors computes them: vectors.safetensors, with
matrices and the values that it reads; activations.safetensors, with inputs as its forward pass
rounds them. Run by hand, with the version that the files' metadata name:

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
ACTIVATIONS = [
    # strategy, dynamic, symmetric
    ("token", True, False),
    ("tensor", False, True),
    ("tensor", False, False),
]
ROWS, COLUMNS = 32, 64


def rounded_activations() -> dict[str, Tensor]:
    """W8A8: the inputs of linear layers as the library's forward pass rounds them."""
    quantization: Any = import_module("compressed_tensors.quantization")
    forward: Any = import_module("compressed_tensors.quantization.lifecycle.forward")
    helpers: Any = import_module("compressed_tensors.quantization.utils")
    stored: dict[str, Tensor] = {}
    for number, (strategy, dynamic, symmetric) in enumerate(ACTIVATIONS):
        random = torch.Generator().manual_seed(number)
        given = quantization.QuantizationArgs(
            num_bits=8, type="int", symmetric=symmetric, strategy=strategy, dynamic=dynamic
        )
        x_1TI = torch.randn(1, 6, COLUMNS, generator=random) * 3 + 0.5
        x_1TI[0, 1] = x_1TI[0, 1].abs()  # the zero point is the lowest integer
        x_1TI[0, 2] = 0.0
        layer = torch.nn.Linear(COLUMNS, ROWS)
        layer.quantization_status = quantization.QuantizationStatus.COMPRESSED
        name = f"{strategy}_{dynamic:d}_{symmetric:d}"
        if not dynamic:  # of a part, so that some values are clipped
            least, most = torch.aminmax(x_1TI[0, 0])
            scale, zero = helpers.calculate_qparams(least, most, given)
            layer.register_buffer("input_scale", scale)
            layer.register_buffer("input_zero_point", zero)
            stored[f"{name}.input_scale"] = scale
            if not symmetric:
                stored[f"{name}.input_zero_point"] = zero
        stored[f"{name}.x"] = x_1TI[0]
        stored[f"{name}.rounded"] = forward.forward_quantize(layer, x_1TI, "input", given)[0]
    return stored


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
    for name, tensors in (("vectors", stored), ("activations", rounded_activations())):
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
            Path(__file__).with_name(f"{name}.safetensors"),
            {"compressed-tensors": version("compressed-tensors")},
        )


if __name__ == "__main__":
    main()
