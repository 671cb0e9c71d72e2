"""Triton's compiler for chips that are not here: what a launch needs of each, from its machine
code."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
from attrs import field, frozen
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@frozen(eq=False)
class Launch:
    """A kernel with the arguments of one call."""

    kernel: Any
    grid: Sequence[int]
    arguments: dict[str, Any]
    options: dict[str, int]


@frozen
class Machine:
    """What the compiler made of a launch."""

    shared_memory: int
    """Bytes of a thread block."""
    registers: int
    """Of a thread."""
    spilled: int
    """Bytes, or registers on AMD's chips, that are kept in memory instead."""
    code: str = field(repr=False)

    def count(self, instruction: str) -> int:
        """How often this regular expression is found in the code."""
        return len(re.findall(instruction, self.code))


@contextmanager
def launches(module: ModuleType) -> Iterator[list[Launch]]:
    """Record what would be launched of this module's kernels meanwhile, instead of running it."""
    records: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                patch.setattr(module, name, _Recorder(value, records))
        yield records


@frozen
class _Recorder:
    kernel: Any
    found: list[Launch]

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        def launch(*arguments: Any, **named: Any) -> None:
            names = self.kernel.arg_names
            given = dict(zip(names, arguments, strict=False))
            options = {name: value for name, value in named.items() if name not in names}
            given |= {name: value for name, value in named.items() if name in names}
            self.found.append(Launch(self.kernel, grid, given, options))

        return launch


def compiled(launch: Launch, chip: str, *, disassemble: bool = True) -> Machine:
    """Compile a launch for a chip, with what the just-in-time compiler would know of its arguments:
    which are 1, and which are divisible by 16. The code is left out unless it is disassembled,
    which takes a third of the time."""
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, launch.arguments[parameter.name]
        if parameter.is_constexpr or isinstance(value, int) and value == 1:
            signature[name], constants[(i,)] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, torch.Tensor) or isinstance(value, int) and value % 16 == 0:
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    with TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        made = triton.compile(source, target=TARGETS[chip], options=launch.options)
        shared = made.metadata.shared
        if "amdgcn" in made.asm:
            code = made.asm["amdgcn"]
            registers, spilled = (
                int(re.findall(rf"\.{name}:\s+(\d+)", code)[-1])
                for name in ("vgpr_count", "vgpr_spill_count")
            )
            return Machine(shared, registers, spilled, code)
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(made.asm["cubin"])
        usage = re.search(r"REG:(\d+) STACK:(\d+)", _objdump("-res-usage", binary))
        assert usage is not None, "cuobjdump tells what a kernel uses"
        code = _objdump("-sass", binary) if disassemble else ""
        return Machine(shared, int(usage[1]), int(usage[2]), code)


def _objdump(option: str, binary: Path) -> str:
    command = [str(_TOOLS / "cuobjdump"), option, str(binary)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
