"""What the kernel provider refuses. Imports neither torch nor triton."""

from __future__ import annotations

import re

from inferno.contracts import (
    GROUPED,
    LINEAR,
    TABLES,
    IntLayout,
    KernelNeed,
    TableLayout,
    W8A8Layout,
)
from inferno.contracts.layouts import GROUPS, fp8_layout
from inferno_triton.attention import refuses_device

BLOCKS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "mxfp4"),
)
"""ggml's layouts that have a kernel."""

LAYOUTS = frozenset(
    {
        *BLOCKS,
        *(W8A8Layout(symmetric=symmetric).name for symmetric in (False, True)),
        *(TableLayout(table=table, group=group).name for table in TABLES for group in GROUPS),
        *(
            IntLayout(bits=bits, group=group, symmetric=symmetric).name
            for bits in (4, 8)
            for group in GROUPS
            for symmetric in (False, True)
        ),
    }
)
"""Packed layouts that have a kernel."""


def refuses(need: KernelNeed) -> str | None:
    if (reason := refuses_device(need.device)) is not None:
        return reason
    if need.op not in (LINEAR, GROUPED):
        return None
    if need.op == GROUPED and need.layout == need.dtype:
        return None
    if need.layout not in LAYOUTS and not _is_fp8(need.layout):
        return f"it has no kernel for matrices stored as {need.layout}"
    if need.dtype == "float32":
        return "its products with packed matrices take float16 and bfloat16, not float32"
    return None


def _is_fp8(layout: str) -> bool:
    """Whether it is a layout of 8-bit floats with a kernel: scales of rows, or of blocks with whole
    times 128 columns."""
    block = re.fullmatch(r"fp8_([1-9]\d*)x([1-9]\d*)", layout)
    return layout == fp8_layout((1, 1)) or block is not None and int(block[2]) % 128 == 0
