"""Element types of activations and plain matrices, as the kernels number them."""

from __future__ import annotations

import torch

from inferno_cpu.layouts import DTYPE_NUMBERS

DTYPES = {getattr(torch, name): number for name, number in DTYPE_NUMBERS.items()}
