"""What the kernel provider refuses. Imports neither torch nor triton."""

from __future__ import annotations

from inferno.contracts import GROUPED, LINEAR, IntLayout, KernelNeed
from inferno.contracts.layouts import GROUPS
from inferno_triton.attention import refuses_device

LAYOUTS = frozenset(
    IntLayout(bits=4, group=group, symmetric=symmetric).name
    for group in GROUPS
    for symmetric in (False, True)
)
"""Layouts of matrices that have a kernel."""

_COLUMNS = 128


def refuses(need: KernelNeed) -> str | None:
    if (reason := refuses_device(need.device)) is not None:
        return reason
    if need.op == GROUPED:
        return "it has no kernel for the matrices of experts"
    if need.op != LINEAR:
        return None
    if need.layout not in LAYOUTS:
        return f"it has no kernel for matrices stored as {need.layout}"
    if need.dtype == "float32":
        return "its products of packed matrices take float16 and bfloat16, not float32"
    if need.shape is not None and need.shape[1] % _COLUMNS:
        return f"the columns must be divisible by {_COLUMNS}, not {need.shape[1]}"
    return None
