"""Check an installed wheel: every level of this machine computes a product as torch does, and the
kernels run on torch's own OpenMP runtime. Exits with 1 if not."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import inferno_cpu
from inferno.nn import Dense
from inferno_cpu import _native
from inferno_cpu.dense import Panels
from inferno_cpu.packed import PackedPanels, pack


def main() -> int:
    generator = torch.Generator().manual_seed(0)
    w_OI = torch.randn(100, 96, generator=generator)
    x_TI = torch.randn(20, 96, generator=generator)
    panels = Panels.of(Dense(w_OI.bfloat16()))
    # q8_0: a float16 scale of 1/64, then 32 codes.
    codes_OI = (w_OI * 40).round().clamp(-127, 127)
    scale = torch.full((100, 3, 1), 1 / 64, dtype=torch.float16).view(torch.uint8)
    blocks_OB = torch.cat(
        [scale, codes_OI.to(torch.int8).view(torch.uint8).reshape(100, 3, 32)], 2
    ).flatten(1)
    packed = PackedPanels(
        "q8_0", (100, 96), torch.float32, pack("q8_0", (100, 96), blocks_OB, dtype=torch.float32)
    )
    _native.set_threads(2)
    wrong = []
    for level in _native.available():
        _native.select(level)
        dense = error(panels.matmul(x_TI), x_TI @ w_OI.bfloat16().float().T)
        quantized = error(packed.matmul(x_TI), x_TI @ (codes_OI / 64).T)
        print(f"{level}: relative error {dense:.1e} in bfloat16, {quantized:.1e} in q8_0")
        if dense > 1e-5 or quantized > 1e-2:  # x is rounded to 8 bits
            wrong.append(level)
    runtimes = openmp_runtimes()
    print(f"{inferno_cpu.__file__}; OpenMP: {', '.join(runtimes) or 'unknown'}")
    if wrong or len(runtimes) > 1:
        print(f"wrong: {', '.join(wrong)}" if wrong else "two OpenMP runtimes", file=sys.stderr)
        return 1
    return 0


def error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def openmp_runtimes() -> list[str]:
    """The files of OpenMP runtimes in this process; none where the system does not tell."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return sorted({line.split()[-1] for line in lines if "omp" in Path(line.split()[-1]).name})


if __name__ == "__main__":
    sys.exit(main())
