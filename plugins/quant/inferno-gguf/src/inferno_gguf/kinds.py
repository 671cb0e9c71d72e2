"""Which type each tensor of a file gets. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno_gguf.ggml import BY_NAME, PACKABLE

PLAIN = ("f32", "f16", "bf16")
KEPT = ("ffn_gate_inp",)
"""Matrices that llama.cpp keeps in float32: routers."""

FILE_TYPES: Mapping[str, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k": 11,
    "q3_k_s": 11,
    "q3_k_m": 12,
    "q3_k_l": 13,
    "q4_k": 14,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k": 16,
    "q5_k_s": 16,
    "q5_k_m": 17,
    "q6_k": 18,
    "iq4_nl": 25,
    "bf16": 32,
}
"""`general.file_type` of each type and mix, by llama.cpp's numbers (`LLAMA_FTYPE`)."""

TARGETS = (*PLAIN, *PACKABLE)
"""What a model can be converted to."""


def kinds_of(main: str, shapes: Mapping[str, tuple[int, ...]], model: Any) -> dict[str, str]:
    """Return the type of each stored tensor, by its name in the file. Rows that are no whole blocks
    stay in 16 bits."""
    return {name: _kind(main, name, shape) for name, shape in shapes.items()}


def _kind(main: str, name: str, shape: tuple[int, ...]) -> str:
    matrix = len(shape) > 1 and name.endswith(".weight") and not name.endswith("_norm.weight")
    if not matrix or any(kept in name for kept in KEPT):
        return "f32"
    return main if shape[-1] % BY_NAME[main].values == 0 else "f16"
