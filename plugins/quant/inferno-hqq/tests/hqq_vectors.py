"""Write vectors.safetensors, beside this file: matrices as hqq stores them, and the values that it
reads in them. Run by hand, with the version that the file's metadata name:

    pip install hqq==0.2.8.post1
    python plugins/quant/inferno-hqq/tests/hqq_vectors.py
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor


def main() -> None:
    hqq: Any = import_module("hqq.core.quantize")
    stored: dict[str, Tensor] = {}
    for bits in (1, 2, 3, 4, 8):
        for axis in (0, 1):
            torch.manual_seed(bits)
            linear = torch.nn.Linear(128, 4, bias=False)
            config = hqq.BaseQuantizeConfig(nbits=bits, group_size=64, axis=axis)
            layer = hqq.HQQLinear(linear, config, compute_dtype=torch.float16, device="cpu")
            name = f"bits{bits}axis{axis}"
            state = {k: v for k, v in layer.state_dict().items() if isinstance(v, Tensor)}
            stored |= {f"{name}.{part}": tensor for part, tensor in state.items()}
            # In float32, without the rounding of each step to float16.
            values = hqq.Quantizer.dequantize(
                layer.W_q, {**layer.meta, "compute_dtype": torch.float32}
            )
            assert values.dtype == torch.float32
            stored[f"{name}.values"] = values
    save_file(
        {name: tensor.detach().contiguous().clone() for name, tensor in stored.items()},
        Path(__file__).with_name("vectors.safetensors"),
        {"hqq": version("hqq")},
    )


if __name__ == "__main__":
    main()
