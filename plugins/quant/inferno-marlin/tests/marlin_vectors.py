"""Write vectors.safetensors, beside this file: matrices as Marlin's own `Layer.pack` packs them.
Run by hand, with a clone of https://github.com/IST-DASLab/marlin at the commit that the metadata
name (packing needs no GPU; the kernels are not loaded):

    python plugins/quant/inferno-marlin/tests/marlin_vectors.py marlin/marlin/__init__.py COMMIT
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

CASES = [(128, 256), (-1, 128)]
"""Group and columns."""
ROWS = 256


def packer(file: str) -> Any:
    """Return Marlin's module, without its kernels."""
    sys.modules["marlin_cuda"] = ModuleType("marlin_cuda")
    spec = spec_from_file_location("marlin", file)
    assert spec is not None and spec.loader is not None, "it is a Python file"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def codes(columns: int) -> Tensor:
    """The integers of a matrix, (O, I), from -8 to 7."""
    row_O1, column_I = torch.arange(ROWS)[:, None], torch.arange(columns)
    return (row_O1 * 7 + column_I * 5 + row_O1 * column_I // 3) % 16 - 8


def scales(groups: int) -> Tensor:
    """(O, G)"""
    return ((torch.arange(ROWS)[:, None] * 3 + torch.arange(groups) * 5) % 97 / 512 + 0.01).half()


def main() -> None:
    file, commit = sys.argv[1:]
    marlin = packer(file)
    stored: dict[str, Tensor] = {}
    for group, columns in CASES:
        size = columns if group == -1 else group
        scales_OG = scales(columns // size)
        values_OI = codes(columns) * scales_OG.float().repeat_interleave(size, 1)
        linear = torch.nn.Linear(columns, ROWS, bias=False, dtype=torch.half)
        linear.weight.data = values_OI.half()
        layer = marlin.Layer(columns, ROWS, group)
        layer.pack(linear, scales_OG)
        stored |= {f"{group}_{columns}.B": layer.B, f"{group}_{columns}.s": layer.s}
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in stored.items()},
        Path(__file__).with_name("vectors.safetensors"),
        {"marlin": commit},
    )


if __name__ == "__main__":
    main()
