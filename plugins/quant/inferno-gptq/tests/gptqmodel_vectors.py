"""Write vectors.safetensors, beside this file: matrices as gptqmodel packs them, and the values
that it unpacks. Run by hand, with the version that the file's metadata name:

    pip install gptqmodel==7.7.0
    python plugins/quant/inferno-gptq/tests/gptqmodel_vectors.py
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

CASES = [
    # bits, group, symmetric, act-order, version
    (2, 32, True, False, "gptq"),
    (3, 32, True, False, "gptq_v2"),
    (3, 32, False, True, "gptq_v2"),
    (4, 32, True, False, "gptq"),
    (4, 32, False, True, "gptq_v2"),
    (4, -1, False, False, "gptq"),
    (8, 32, False, True, "gptq"),
    (8, 64, True, False, "gptq_v2"),
]
ROWS, COLUMNS = 32, 64


def main() -> None:
    layer: Any = import_module("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    lower: Any = import_module("gptqmodel.utils.model").convert_gptq_v2_to_v1_format_module
    stored: dict[str, Tensor] = {}
    for number, (bits, group, symmetric, act_order, form) in enumerate(CASES):
        random = torch.Generator().manual_seed(number)
        size, most = COLUMNS if group == -1 else group, 2**bits - 1
        groups_I = torch.arange(COLUMNS, dtype=torch.int32) // size
        if act_order:
            groups_I = groups_I[torch.randperm(COLUMNS, generator=random)]
        scales_OG = (torch.rand(ROWS, COLUMNS // size, generator=random) / most + 0.01).half()
        zeros_OG = torch.full_like(scales_OG, 2 ** (bits - 1)).float()
        if not symmetric:
            zeros_OG = torch.randint(1, most + 1, zeros_OG.shape, generator=random).float()
        codes_OI = torch.randint(0, most + 1, (ROWS, COLUMNS), generator=random)
        values_OI = (codes_OI - zeros_OG[:, groups_I]) * scales_OG[:, groups_I].float()
        linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
        linear.weight.data = values_OI
        packed = layer(
            bits=bits,
            group_size=group,
            sym=symmetric,
            desc_act=act_order,
            in_features=COLUMNS,
            out_features=ROWS,
        )
        packed.pack_original(linear, scales_OG.float(), zeros_OG, groups_I)
        packed.post_init()
        name = f"{bits}_{group}_{symmetric:d}_{act_order:d}_{form}"
        stored[f"{name}.values"] = packed.dequantize_weight().T.float()
        if form == "gptq":
            lower(packed, SimpleNamespace(bits=bits, pack_dtype=torch.int32))
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            stored[f"{name}.{part}"] = getattr(packed, part)
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in stored.items()},
        Path(__file__).with_name("vectors.safetensors"),
        {"gptqmodel": version("gptqmodel")},
    )


if __name__ == "__main__":
    main()
