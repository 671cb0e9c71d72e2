"""In-situ quantization to the public layouts of 4-bit integers in groups of columns
(`contracts.IntLayout`).

Suffixes: O rows, I columns, N groups, C columns of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from inferno.contracts import HeldMatrix, IntLayout, Refused, StoredMatrix
from inferno.errors import PluginError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn import Weight

_SEARCH = [1 - 0.02 * step for step in range(16)]
"""Shares of a group's range that its codes may span: cutting off its ends makes all steps finer."""


def refuses(stored: StoredMatrix) -> str | None:
    return "it quantizes dense matrices while they are loaded"


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    raise PluginError(
        "no checkpoint stores matrices of this scheme",
        "Report this: the plan chose a scheme that refuses every matrix.",
    )


def load(*_: object, **__: object) -> Weight:
    raise PluginError(
        "no checkpoint stores matrices of this scheme",
        "Report this: the plan chose a scheme that refuses every matrix.",
    )


def packs(group: int, shape: tuple[int, int], dtype: str) -> HeldMatrix:
    """Return what a dense matrix becomes. Raises Refused unless rows are whole groups."""
    rows, columns = shape
    if columns % group:
        raise Refused(f"{columns} columns are not divisible into groups of {group}")
    layout = IntLayout(bits=4, group=group)
    nbytes = layout.nbytes(rows, columns)
    return HeldMatrix(layout=layout.name, shape=shape, nbytes=nbytes, unit=(1, group))


def pack(
    group: int,
    weight_OI: Tensor,
    *,
    importance: Tensor | None = None,
    quantize: Callable[..., tuple[Tensor, ...]] | None = None,
) -> Weight:
    """Quantize a matrix, by a kernel provider's `quantize` if there is one. `importance`, float32
    (I,), weighs the squared errors of columns. Raises UnsupportedError unless rows are whole
    groups."""
    import torch

    from inferno.nn.packed import CHUNK, IntGroups, packed_nibbles

    rows, columns = weight_OI.shape
    try:
        layout = packs(group, (rows, columns), "").layout
    except Refused as refused:
        raise UnsupportedError(str(refused), "Choose another scheme.") from refused
    if quantize is not None:
        data_OB, scales_OG, zeros_OG = quantize(layout, weight_OI, importance)
        return IntGroups(data_OB, scales_OG, zeros_OG, 4, weight_OI.dtype)
    parts = []
    for weight_RI in weight_OI.split(max(1, CHUNK // max(1, columns))):
        x_NC = weight_RI.float().reshape(-1, group)
        weights_NC = (
            torch.ones_like(x_NC)
            if importance is None
            else importance.expand(len(weight_RI), -1).reshape(-1, group)
        )
        codes_NC, scale_N, zero_N = _groups(x_NC, weights_NC)
        grid = len(weight_RI), columns // group
        codes_RI = codes_NC.to(torch.uint8).view(len(weight_RI), columns)
        parts.append((packed_nibbles(codes_RI), scale_N.view(grid), zero_N.view(grid)))
    data_OB, scales_OG, zeros_OG = (torch.cat(each) for each in zip(*parts, strict=True))
    return IntGroups(data_OB, scales_OG, zeros_OG, 4, weight_OI.dtype)


def _groups(x_NC: Tensor, weights_NC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes (float32), scales and zero points (float16, N) with the least weighted squared
    error among some shares of each group's range."""
    import torch

    low_N, high_N = x_NC.amin(1).clamp(max=0), x_NC.amax(1).clamp(min=0)
    best_N = torch.full_like(low_N, torch.inf)
    codes_NC, scale_N, zero_N = torch.zeros_like(x_NC), low_N.half(), low_N.half()
    for share in _SEARCH:
        tried_N = ((high_N - low_N) * share / 15).half()
        some_N = tried_N != 0
        step_N = torch.where(some_N, tried_N.float(), 1.0)
        offset_N = torch.where(some_N, -low_N * share / step_N, 0.0).half()
        tried_NC = (x_NC / step_N[:, None] + offset_N.float()[:, None]).round().clamp(0, 15)
        values_NC = tried_N.float()[:, None] * (tried_NC - offset_N.float()[:, None])
        error_N = (weights_NC * (values_NC - x_NC).square()).sum(1)
        better_N = error_N < best_N
        best_N = torch.where(better_N, error_N, best_N)
        codes_NC = torch.where(better_N[:, None], tried_NC, codes_NC)
        scale_N = torch.where(better_N, tried_N, scale_N)
        zero_N = torch.where(better_N, offset_N, zero_N)
    return codes_NC, scale_N, zero_N
