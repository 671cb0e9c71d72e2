"""The compiled instructions of each level, read from the object files of the build: that it has
what it is for, and nothing that a processor of that level lacks."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VEX = r"v[a-z]\S*"  # AVX and later; the exceptions verr and verw are never compiled
EVEX = r"[^\n]*%(zmm\d|k[0-7]\b|[xyz]mm(1[6-9]|[23]\d))"  # of AVX-512: operands
SSE3_TO_SSE4 = (
    r"(h(add|sub)p[sd]|addsubp[sd]|movs[hl]dup|movddup|lddqu|pabs\w|pshufb|palignr|pmaddubsw"
    r"|pmulhrsw|psign\w|ph(add|sub)\w+|pmov[sz]x\w+|p?blend\w+|round\w+|ptest|dpp[sd]"
    r"|insertps|extractps|pinsr[bdq]|pextr[bdq]|packusdw|pmul(dq|ld)|p(min|max)(s[bd]|u[dw])"
    r"|pcmp(eqq|gtq)|crc32\w?|popcnt|mpsadbw)\b"
)
VNNI = r"(\{\w+\} )?vpdp\w+"
BF16 = r"(vdpbf16ps|vcvtne2?ps2?\w*bf16)"
AMX = r"(t(dp\w+|ile\w+)|ldtilecfg|sttilecfg)"
TILES = ["ldtilecfg", "tileloadd", "tilestored", "tilerelease"]

NEVER = {
    "portable": f"{VEX}|{SSE3_TO_SSE4}",
    "sse42": VEX,
    "avx2": f"{EVEX}|{VNNI}|{AMX}",
    "avxvnni": f"{EVEX}|{AMX}",
    "avx512vnni": f"{BF16}|{AMX}",
    "avx512": AMX,
}
USES = {
    ("packed", "sse42"): ["pmaddubsw", "pmaddwd"],
    ("packed", "avx2"): ["vpmaddubsw", "vpmaddwd"],
    ("packed", "avxvnni"): [r"\{vex\} vpdpbusd"],
    ("packed", "avx512vnni"): ["vpdpbusd .*%zmm"],
    ("dense", "avx2"): ["vfmadd.*%ymm"],
    ("dense", "avx512vnni"): ["vfmadd.*%zmm"],
    ("dense", "avx512"): ["vdpbf16ps .*%zmm", "vpermw .*%zmm"],
    ("attention", "avx512"): ["vdpbf16ps .*%zmm"],
    ("packed", "amx"): [*TILES, "tdpbssd", "tdpbsud"],
    ("dense", "amx"): [*TILES, "tdpbf16ps"],
}


def build() -> Path:
    """The folder of the build's object files, where an editable installation keeps them."""
    if platform.machine() != "x86_64":
        pytest.skip("instructions of x86-64")
    if shutil.which("objdump") is None:
        pytest.skip("no objdump: install binutils")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folders = sorted(Path(__file__).parents[1].glob(f"build/{tag}-*/CMakeFiles"))
    if not folders:
        pytest.skip("no object files: the module was not compiled in this folder")
    return folders[0]


def objects() -> dict[tuple[str, str], Path]:
    """Object files by family of kernels and level."""
    paths = {}
    for path in build().glob("*.dir/native/*.o"):
        family, _, level = path.parents[1].name.removesuffix(".dir").partition("_")
        if family:
            paths[family, level] = path
    return paths


def instructions(path: Path) -> str:
    """One on each line."""
    dump = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    ).stdout
    return "\n".join(line.partition("\t")[2] for line in dump.splitlines() if "\t" in line)


@pytest.mark.slow
def test_a_level_has_only_instructions_of_its_processors() -> None:
    for (family, level), path in objects().items():
        if level not in NEVER:
            continue
        wrong = re.search(rf"^({NEVER[level]}).*", instructions(path), re.M)
        assert wrong is None, f"{family} of {level}: {wrong[0]}"


@pytest.mark.slow
def test_a_level_uses_the_instructions_it_is_for() -> None:
    files = objects()
    for (family, level), wanted in USES.items():
        if (family, level) in files:
            code = instructions(files[family, level])
            assert all(re.search(rf"^{each}", code, re.M) for each in wanted), (family, level)


def test_what_every_processor_runs_has_no_instructions_of_a_level() -> None:
    """The choice of a level, the bindings, the threads."""
    paths = [*build().glob("_native.dir/native/*.o"), *build().glob("_levels.dir/native/*.o")]
    assert len(paths) > 5
    for path in paths:
        wrong = re.search(rf"^({NEVER['portable']}).*", instructions(path), re.M)
        assert wrong is None, f"{path.name}: {wrong[0]}"


def test_a_level_shares_no_function_with_another() -> None:
    """The linker keeps one copy of a function that several object files define: perhaps one with
    instructions that this machine lacks."""
    for (family, level), path in objects().items():
        symbols = subprocess.run(
            ["objdump", "-t", path], capture_output=True, text=True, check=True
        ).stdout
        shared = re.findall(r"^\w+ [gwu].{5}F \.text\S*\s+\w+\s+(.*)", symbols, re.M)
        assert not shared, f"{family} of {level}: {shared}"
