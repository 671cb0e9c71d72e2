"""A matrix, and what ggml's quantizer makes of it: for tests of quantizers.

The bytes are those of `ggml_quantize_chunk` in a build without fused multiply-add
(https://github.com/ggml-org/ggml, `ggml-quants.c`).

Suffixes: O rows, I columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor

ROWS, COLUMNS = 8, 768


def _numbers(count: int, seed: int) -> np.ndarray:
    """Return numbers from 0 to 1, the same with every version of NumPy and torch."""
    numbers, state = np.empty(count), seed
    for index in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        numbers[index] = state / 2**31
    return numbers


@cache
def matrix() -> Tensor:
    """Return float32 (O, I): nearly normally distributed, with groups that are zero, constant,
    positive or tiny."""
    weight_OI = _numbers(4 * ROWS * COLUMNS, 7).reshape(4, ROWS, COLUMNS).sum(0) - 2
    weight_OI[1, :256] = 0
    weight_OI[2, 32:64] = 0.5
    weight_OI[3, :64] = -0.25
    weight_OI[4] = np.abs(weight_OI[4])
    weight_OI[5] *= 1e-6
    return torch.from_numpy(weight_OI.astype(np.float32))


@cache
def importance() -> Tensor:
    """Return the importance of the matrix's columns, float32 (I,)."""
    return torch.from_numpy((_numbers(COLUMNS, 3) ** 4 + 1e-3).astype(np.float32))


def digest(blocks: Tensor) -> str:
    """Return what `VECTORS` has for these bytes."""
    return hashlib.sha256(blocks.contiguous().numpy().tobytes()).hexdigest()[:16]


def error_of(values_OI: Tensor, weigh: bool) -> float:
    """Return the relative root mean square error of values for the matrix, weighed by
    importance or not."""
    weights = importance() if weigh else torch.ones(())
    off = (weights * (values_OI.double() - matrix()).square()).sum()
    return float((off / (weights * matrix().double().square()).sum()).sqrt())


VECTORS: Mapping[str, tuple[str, float]] = {
    "q8_0": ("c5f7672378ec1e73", 0.005115),
    "q8_0 weighted": ("c5f7672378ec1e73", 0.005166),
    "q4_0": ("d8b91abb621b4fff", 0.081974),
    "q4_0 weighted": ("db5de1d0814e52fe", 0.07017),
    "q4_1": ("0665abaff2ee269b", 0.0716),
    "q4_1 weighted": ("ffac8686c899599f", 0.055924),
    "q5_0": ("293b848e11ad062d", 0.040557),
    "q5_0 weighted": ("4633049d40640dc1", 0.034396),
    "q5_1": ("f0fd2f4af18c0e12", 0.034531),
    "q5_1 weighted": ("3c15241da92464ce", 0.026771),
    "q2_k": ("133f9441b3d8b1fd", 0.270877),
    "q2_k weighted": ("e5cb45243a4b9cbb", 0.200651),
    "q3_k": ("6d712288c2830c7b", 0.14348),
    "q3_k weighted": ("7b309dd4101cc51f", 0.118702),
    "q4_k": ("24bdc75fb123ac8c", 0.064868),
    "q4_k weighted": ("0b907f4c1452ea76", 0.056579),
    "q5_k": ("dbb5bb304084291d", 0.032932),
    "q5_k weighted": ("7cbd5b68e492f77f", 0.028648),
    "q6_k": ("8a087bb0241cd1ca", 0.017096),
    "q6_k weighted": ("f36e39c4e625609e", 0.014613),
    "iq4_nl": ("a0946a6cc9ba39b6", 0.073291),
    "iq4_nl weighted": ("c1ad634d744a9405", 0.066138),
}
"""Block type, weighted by importance or not -> the digest of ggml's blocks and their error."""
