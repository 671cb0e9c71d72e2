"""The levels of ARM: their kernels, compiled for it, run on an emulator of a processor of each, and
compared with the same references as on this one, over smaller grids; and their instructions.

Needs a compiler for aarch64 and qemu (Debian: g++-aarch64-linux-gnu and qemu-user-static). The
first run compiles for some minutes. An emulator on x86 shows no reordering of memory accesses.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import test_attention
import test_attention_8_bit
import test_attention_whole
import test_dense
import test_elementwise
import test_experts
import test_grouped
import test_native_fp8
import test_native_tables
import test_packed
import torch
from attended import TOLERANCE
from driver import Driver

import inferno_cpu.attend
import inferno_cpu.dense
import inferno_cpu.elementwise
import inferno_cpu.experts
import inferno_cpu.fp8
import inferno_cpu.packed
from inferno_cpu.layouts import LAYOUTS

COMPILER = shutil.which("aarch64-linux-gnu-g++")
OBJDUMP = shutil.which("aarch64-linux-gnu-objdump")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
LIBRARIES = "/usr/aarch64-linux-gnu"
PLUGIN = Path(__file__).parents[1]
BUILD = PLUGIN / "build" / "aarch64"

PROCESSORS = {
    "neon": "cortex-a53",
    "dotprod": "cortex-a76",
    "i8mm": "max,sve=off",
    "sve256": "max,sve256=on,sve512=off",
}
"""A processor of which each level is the best."""
LEVELS = list(PROCESSORS)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="no compiler: install g++-aarch64-linux-gnu"),
    pytest.mark.skipif(EMULATOR is None, reason="no qemu-aarch64: install qemu-user-static"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake"),
]


@pytest.fixture(scope="module")
def build() -> Path:
    """The folder of the driver's build, up to date."""
    options = {
        "INFERNO_DRIVER": "ON",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
    }
    if ccache := shutil.which("ccache"):
        options["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
    defines = [f"-D{name}={value}" for name, value in options.items()]
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of pytest may run tests of this file
        for command in (
            ["cmake", "-S", str(PLUGIN), "-B", str(BUILD), *defines],
            ["cmake", "--build", str(BUILD), "-j", str(os.cpu_count() or 1)],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return BUILD


def on(level: str, build: Path) -> list[str]:
    """The command that runs the driver on a processor of this level."""
    assert EMULATOR is not None
    return [EMULATOR, "-L", LIBRARIES, "-cpu", PROCESSORS[level], str(build / "_native")]


@pytest.fixture(params=LEVELS)
def level(
    request: pytest.FixtureRequest, build: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A level whose kernels the ops call, on two threads."""
    users: list[ModuleType] = [
        inferno_cpu.attend,
        inferno_cpu.dense,
        inferno_cpu.elementwise,
        inferno_cpu.experts,
        inferno_cpu.fp8,
        inferno_cpu.packed,
        inferno_cpu.tables,
    ]
    with Driver(on(request.param, build), request.param, threads=2) as driver:
        for user in users:
            monkeypatch.setattr(user, "_native", driver)
        yield request.param
        assert driver.calls, "no kernel was called"


@pytest.mark.parametrize("best", LEVELS)
def test_a_processor_runs_its_level_and_those_below(best: str, build: Path) -> None:
    done = subprocess.run(on(best, build), capture_output=True, text=True, check=True)
    below = [*reversed(LEVELS[: LEVELS.index(best) + 1]), "portable"]
    assert done.stdout.split() == below


def test_vectors_of_another_length_are_not_for_sve256(build: Path) -> None:
    command = on("sve256", build)
    command[command.index("-cpu") + 1] = "max,sve128=on,sve256=off,sve512=off"
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "i8mm"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_products(level: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_packed, "ROWS", [17, 33])
    monkeypatch.setattr(test_packed, "TOKENS", [*range(1, 10), 11, 13, 17, 33])
    test_packed.test_is_the_product_with_x_rounded_to_int8(layout, 1)
    test_packed.test_is_the_product_with_x_rounded_to_int8(layout, 2)
    test_packed.test_extreme_scales(layout)
    test_packed.test_other_types_of_activations(layout, torch.bfloat16)
    test_packed.test_other_types_of_activations(layout, torch.float16)
    test_packed.test_rows_are_exact(layout, torch.float32)
    test_packed.test_rows_are_exact(layout, torch.bfloat16)
    test_packed.test_what_is_not_finite_makes_its_row_nan(layout, torch.inf)
    test_packed.test_argmax(layout)


def test_packed_of_the_greatest_codes(level: str) -> None:
    for code in (0, 127, 128, 255):
        test_packed.test_the_greatest_codes_do_not_saturate(code)


@pytest.mark.parametrize("weight_type", test_dense.KINDS)
def test_dense_products(
    level: str, weight_type: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_dense, "SHAPES", [(1, 1), (17, 33), (100, 47)])
    test_dense.test_rows_are_the_matrix((17, 33), weight_type)
    test_dense.test_rows_are_the_matrix((48, 64), weight_type)
    for type_ in test_dense.KINDS:
        test_dense.test_product(weight_type, type_, 2)
    test_dense.test_bias(weight_type)
    test_dense.test_argmax_is_that_of_the_product(weight_type, 32, 2)
    test_dense.test_argmax_of_what_is_not_finite(weight_type)
    for columns in (200, 256):
        test_dense.test_a_token_has_the_same_product_in_any_company(columns)


@pytest.mark.parametrize("block", [(1, 0), (16, 128)])
def test_products_of_float8(
    level: str, block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_native_fp8, "SHAPES", [(1, 1), (17, 33), (100, 131), (40, 320)])
    test_native_fp8.test_every_code_is_its_value()
    for type_ in test_dense.KINDS:
        test_native_fp8.test_rows_are_the_values(block, type_)
        test_native_fp8.test_product(block, type_)
    test_native_fp8.test_grouped([3, 17, 0, 9, 8, 16, 1], block)
    test_native_fp8.test_argmax_is_that_of_the_product(torch.bfloat16)
    for columns in (200, 256):
        test_native_fp8.test_a_token_has_the_same_product_in_any_company(columns, torch.bfloat16)


def test_products_of_tables(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_native_tables, "SHAPES", [(17, 3), (40, 2)])
    for layout in ("nf4_g64", "fp4_g32"):
        test_native_tables.test_values_are_near(layout)
        for type_ in test_dense.KINDS:
            test_native_tables.test_product(layout, type_)
    test_native_tables.test_grouped([3, 17, 0, 9, 8, 16, 1], "nf4_g64")
    test_native_tables.test_a_token_has_the_same_product_in_any_company(torch.bfloat16)


def test_products_of_stacked_matrices(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [[0, 5, 0], [1] * 8, [3, 17, 0, 9, 8, 16, 1]]
    monkeypatch.setattr(test_grouped, "COUNTS", counts)
    monkeypatch.setattr(test_grouped, "ROWS", [16, 20])
    for type_ in test_elementwise.DTYPES:
        test_grouped.test_dense(type_, type_)
    for layout in ("q8_0", "q4_k", "q6_k", "mxfp4"):
        test_grouped.test_packed(layout)


@pytest.mark.parametrize("dtype", test_elementwise.DTYPES)
def test_elementwise_ops(level: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_elementwise, "ROWS", [3])
    test_elementwise.test_norms(dtype)
    test_elementwise.test_add_layer_norm(dtype)
    test_elementwise.test_norm_and_rope_of_heads_within_a_qkv_matrix(dtype, 3)
    test_elementwise.test_silu_mul_of_halves_of_one_matrix(dtype)
    test_elementwise.test_gelu(dtype)
    test_elementwise.test_argmax(dtype)
    test_elementwise.test_argmax_of_nan_and_infinity(dtype)
    test_elementwise.test_gather(dtype)
    if dtype != torch.float32:
        test_elementwise.test_sums_are_rounded_to_the_nearest_even(dtype)


def test_routing(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_experts, "SIZES", [(3, 33, 5, 5), (17, 100, 128, 8)])
    for dtype in test_experts.DTYPES:
        for sigmoid in (False, True):
            test_experts.test_route(dtype, sigmoid, True)
        test_experts.test_combine(dtype, 100)
    test_experts.test_dispatch(20, 8, 2)
    test_experts.test_an_expert_that_is_not_there(4)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_in_each_type(level: str, dtype: str) -> None:
    test_attention.test_mixed_steps(dtype, (6, 2))
    test_attention.test_mixed_steps(dtype, (16, 1))
    for kind in ("int8", "fp8_e4m3"):
        test_attention_8_bit.test_8_bit_caches(kind, dtype)


def test_attention_of_any_head_window_and_context(level: str) -> None:
    for dim in (16, 48, 128, 256):
        test_attention.test_head_dims(dim)
    test_attention.test_windows_and_caps(17, 3.0)
    for kind in ("int8", "fp8_e4m3"):
        test_attention_8_bit.test_8_bit_elements_are_the_nearest(kind)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_of_whole_sequences(level: str, dtype: str) -> None:
    test_attention_whole.test_every_token_sees_all(dtype, (6, 2))
    test_attention_whole.test_windows(5)


# ---- instructions ----

Z = r"[^\n]*\bz\d+\."
"""An instruction on SVE's vectors."""
DOT = r"[su]dot\b"
MATRIX = r"(us?mmla|smmla|usdot|bf(dot|cvt|m)\w*)\b"
NEVER = {
    "portable": f"{DOT}|{MATRIX}|{Z}",
    "neon": f"{DOT}|{MATRIX}|{Z}",
    "dotprod": f"{MATRIX}|{Z}",
    "i8mm": Z,
}
USES = {
    ("packed", "neon"): ["smlal2", "sadalp"],
    ("packed", "dotprod"): [r"sdot\s+v\d+\.4s"],
    ("packed", "i8mm"): [r"usdot\s+v\d+\.4s", r"usmmla\s+v\d+\.4s"],
    ("dense", "neon"): [r"fmla\s+v\d+\.4s"],
    ("dense", "i8mm"): [r"bfdot\s+v\d+\.4s", r"bfmmla\s+v\d+\.4s", r"bfcvtn2\s"],
    ("attention", "i8mm"): [r"bfdot\s+v\d+\.4s"],
    ("packed", "sve256"): [r"usdot\s+z\d+\.s", r"usmmla\s+z\d+\.s"],
    ("dense", "sve256"): [r"bfdot\s+z\d+\.s", r"bfmmla\s+z\d+\.s", r"fmla\s+z\d+\.s"],
    ("attention", "sve256"): [r"bfdot\s+z\d+\.s", r"ld1w\s+\{z\d+\.s\}"],
    ("elementwise", "sve256"): [r"ld1w\s+\{z\d+\.s\}", r"bfcvt\s+z\d+\.h"],
}


def instructions(build: Path, family: str, level: str) -> str:
    """One on each line."""
    path = build / "CMakeFiles" / f"{family}_{level}.dir" / "native" / f"{family}.cpp.o"
    dump = subprocess.run(
        [str(OBJDUMP), "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    ).stdout
    return "\n".join(line.partition("\t")[2] for line in dump.splitlines() if "\t" in line)


@pytest.mark.skipif(OBJDUMP is None, reason="no objdump for aarch64")
def test_a_level_has_only_instructions_of_its_processors(build: Path) -> None:
    for folder in (build / "CMakeFiles").glob("*_*.dir"):
        family, _, level = folder.name.removesuffix(".dir").partition("_")
        if family and level in NEVER:
            wrong = re.search(rf"^({NEVER[level]}).*", instructions(build, family, level), re.M)
            assert wrong is None, f"{family} of {level}: {wrong[0]}"


@pytest.mark.skipif(OBJDUMP is None, reason="no objdump for aarch64")
@pytest.mark.parametrize("which", USES, ids="-".join)
def test_a_level_uses_the_instructions_it_is_for(build: Path, which: tuple[str, str]) -> None:
    code = instructions(build, *which)
    for wanted in USES[which]:
        assert re.search(rf"^{wanted}", code, re.M), wanted
