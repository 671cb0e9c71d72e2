"""Matrix products: by a library, or row by row, whose bits do not depend on how many rows there
are.

Suffixes: T tokens, I inputs, O outputs, X matrices, Y and L rows of one, C their width.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MAX_PRODUCTS = 1 << 24
"""Most products of two elements in memory at once."""


def products(a_XYC: Tensor, b_XLC: Tensor) -> Tensor:
    """Return a · b.T, (X, Y, L), by torch's library."""
    return torch.bmm(a_XYC, b_XLC.transpose(1, 2))


def row_products(a_XYC: Tensor, b_XLC: Tensor) -> Tensor:
    """Return a · b.T, (X, Y, L), each element as the sum of one contiguous row, whatever the others
    and with any number of threads: a matrix library promises neither."""
    b_X1LC = b_XLC[:, None].contiguous()
    rows = max(1, _MAX_PRODUCTS // b_X1LC.numel())
    return torch.cat([(a[:, :, None] * b_X1LC).sum(-1) for a in a_XYC.split(rows, dim=1)], dim=1)


def linear_by_rows(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x · weight.T + bias in float32, with products as `row_products` computes them."""
    y_TO = row_products(x_TI.float()[None], weight_OI.float()[None])[0]
    return y_TO if bias_O is None else y_TO + bias_O
