"""Write vectors.safetensors, beside this file: matrices as gptqmodel, which maintains AutoAWQ's
formats, packs them, and the values that it unpacks. Run by hand, with the version that the file's
metadata name:

    pip install gptqmodel==7.7.0
    python plugins/quant/inferno-awq/tests/gptqmodel_vectors.py
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

CASES = [(32, 64), (64, 128), (-1, 64)]
"""Group and columns."""
ROWS = 32


def main() -> None:
    packing: Any = import_module("gptqmodel.quantization.awq.utils.packing_utils")
    stored: dict[str, Tensor] = {}
    for number, (group, columns) in enumerate(CASES):
        random = torch.Generator().manual_seed(number)
        size = columns if group == -1 else group
        codes_IO = torch.randint(0, 16, (columns, ROWS), generator=random)
        zeros_GO = torch.randint(0, 16, (columns // size, ROWS), generator=random)
        scales_GO = (torch.rand(zeros_GO.shape, generator=random) / 15 + 0.01).half()
        qweight, qzeros = packing.pack_awq(codes_IO, zeros_GO, 4)
        parts = {"qweight": qweight, "qzeros": qzeros, "scales": scales_GO}
        values_IO = packing.dequantize_gemm(qweight, qzeros, scales_GO, 4, size)
        name = f"gemm_{group}_{columns}"
        stored |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
        stored[f"{name}.values"] = values_IO.T.float()
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in stored.items()},
        Path(__file__).with_name("vectors.safetensors"),
        {"gptqmodel": version("gptqmodel")},
    )


if __name__ == "__main__":
    main()
