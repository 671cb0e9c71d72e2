"""Write gemv.safetensors, beside this file: matrices as AutoAWQ's own `WQLinear_GEMV` packs them,
and the values that went in. Run by hand, with the source of the version that the file's metadata
name (`pip download --no-deps autoawq==0.2.9`, unpacked: importing all of it needs more):

    python plugins/quant/inferno-awq/tests/gemv_vectors.py autoawq-0.2.9/awq/modules/linear/gemv.py
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

CASES = [(32, 64), (64, 192), (128, 256)]
"""Group and columns."""
ROWS, VERSION = 16, "0.2.9"


def packer(file: str) -> Any:
    """Return AutoAWQ's module, without its kernels."""
    helper: Any = ModuleType("awq.utils.module")
    helper.try_import = lambda name: (None, name)
    for name in ("awq", "awq.utils"):
        sys.modules[name] = ModuleType(name)
    sys.modules["awq.utils.module"] = helper
    spec = spec_from_file_location("gemv", file)
    assert spec is not None and spec.loader is not None, "it is a Python file"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    gemv = packer(sys.argv[1])
    stored: dict[str, Tensor] = {}
    for number, (group, columns) in enumerate(CASES):
        random = torch.Generator().manual_seed(number)
        codes_OI = torch.randint(0, 16, (ROWS, columns), generator=random)
        zeros_OG = torch.randint(0, 16, (ROWS, columns // group), generator=random)
        scales_OG = (torch.rand(zeros_OG.shape, generator=random) / 8 + 0.01).half()
        wide = {"repeats": group, "dim": 1}
        linear = torch.nn.Linear(columns, ROWS, bias=False)
        linear.weight.data = (codes_OI - zeros_OG.repeat_interleave(**wide)).float()
        linear.weight.data *= scales_OG.float().repeat_interleave(**wide)
        made = gemv.WQLinear_GEMV.from_linear(
            linear, 4, group, scales=scales_OG.float(), zeros=zeros_OG.float()
        )
        name = f"gemv_{group}_{columns}"
        parts = {"qweight": made.qweight, "qzeros": made.qzeros, "scales": made.scales}
        stored |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
        stored[f"{name}.values"] = linear.weight.data
    save_file(
        {name: tensor.detach().contiguous().clone() for name, tensor in stored.items()},
        Path(__file__).with_name("gemv.safetensors"),
        {"autoawq": VERSION},
    )


if __name__ == "__main__":
    main()
