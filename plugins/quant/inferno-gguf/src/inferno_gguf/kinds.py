"""Which type each tensor of a file gets. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping

from inferno.contracts import DenseMatrices
from inferno_gguf.ggml import BY_NAME, PACKABLE
from inferno_gguf.mixes import MIXES, choose

PLAIN = ("f32", "f16", "bf16")
KEPT = ("ffn_gate_inp", "ssm_conv1d", "shortconv.conv", "position_embd", "token_types")
"""Matrices that llama.cpp keeps in float32: routers, the taps of convolutions, and the tables of
encoders that are not tokens."""

FILE_TYPES: Mapping[str, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q2_k_s": 21,
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

TARGETS = (*PLAIN, *MIXES)
"""What a model can be converted to."""


def kinds_of(
    main: str,
    stored: Mapping[str, tuple[str, tuple[int, ...]]],
    matrices: DenseMatrices,
    *,
    weighted: bool,
) -> dict[str, str]:
    """Return the type of each stored tensor, by its name in the file. `stored` has the first of the
    model's tensors that it holds, and its shape. `main` is a plain type or a mix;
    `weighted`: the importance of columns is known. Raises OptionError."""
    mixed = {} if main in PLAIN else choose(main, matrices, weighted)
    kinds: dict[str, str] = {}
    for name, (ours, shape) in stored.items():
        if len(shape) < 2 or not name.endswith(".weight") or name.endswith("_norm.weight"):
            kinds[name] = "f32"
        elif any(part in name for part in KEPT):
            kinds[name] = "f32"
        else:
            choice = mixed.get(ours.removesuffix(".weight"))
            kinds[name] = _fitting(main if choice is None else choice.scheme, shape[-1])
    return kinds


def _fitting(kind: str, columns: int) -> str:
    """Return the type, or what is taken instead for rows that are not whole blocks of it."""
    if kind not in BY_NAME:  # a mix, of a matrix without a rule
        return "f16"
    for each in (kind, *PACKABLE.get(kind, ())):
        if columns % BY_NAME[each].values == 0:
            return each
    return "f16"
