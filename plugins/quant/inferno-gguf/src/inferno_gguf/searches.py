"""The searches for scales of ggml's quantizer, for many groups at once, in torch.

The reference for machines without native quantizers: the same candidates and the same choices as
`make_*_quants` of ggml-quants.c (https://github.com/ggml-org/ggml). Sums are rounded in another
order, so that a few codes in ten thousand differ.

Suffixes: N groups, C columns of a group. Everything is float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

CURVE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of iq4_nl's codes."""
_TINY = 1e-15
"""Groups of smaller values are zeros."""


def search_min(
    x_NC: Tensor,
    w_NC: Tensor,
    most: int,
    *,
    first: float,
    step: float,
    steps: int,
    absolute: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scales (N,), minima (N,) and codes (N, C) from 0 to `most`, with x = scale · code -
    minimum. Errors are squared, or `absolute`, and weighed by w."""
    low_N, high_N = x_NC.amin(1).clamp(max=0), x_NC.amax(1)
    flat_N = high_N <= low_N
    sum_w_N, sum_x_N = w_NC.sum(1), (w_NC * x_NC).sum(1)

    def coded(inverse_N: Tensor, low_N: Tensor) -> Tensor:
        return (inverse_N[:, None] * (x_NC - low_N[:, None])).round().clamp(0, most)

    def error_of(codes_NC: Tensor, scale_N: Tensor, low_N: Tensor) -> Tensor:
        off_NC = scale_N[:, None] * codes_NC + low_N[:, None] - x_NC
        return (w_NC * (off_NC.abs() if absolute else off_NC.square())).sum(1)

    def span() -> Tensor:
        return torch.where(flat_N, 1.0, high_N - low_N)

    inverse_N = most / span()
    scale_N, codes_NC = 1 / inverse_N, coded(inverse_N, low_N)
    best_N = error_of(codes_NC, scale_N, low_N)
    for number in range(steps + 1):
        tried_NC = coded((first + step * number + most) / span(), low_N)
        wl_NC = w_NC * tried_NC
        sum_l_N, sum_l2_N, sum_xl_N = (
            wl_NC.sum(1),
            (wl_NC * tried_NC).sum(1),
            (wl_NC * x_NC).sum(1),
        )
        det_N = sum_w_N * sum_l2_N - sum_l_N.square()
        solved_N = det_N > 0
        det_N = torch.where(solved_N, det_N, 1.0)
        tried_scale_N = (sum_w_N * sum_xl_N - sum_x_N * sum_l_N) / det_N
        tried_low_N = (sum_l2_N * sum_x_N - sum_l_N * sum_xl_N) / det_N
        above_N = tried_low_N > 0
        tried_scale_N = torch.where(above_N, sum_xl_N / sum_l2_N, tried_scale_N)
        tried_low_N = torch.where(above_N, 0.0, tried_low_N)
        error_N = error_of(tried_NC, tried_scale_N, tried_low_N)
        better_N = solved_N & (error_N < best_N)
        best_N = torch.where(better_N, error_N, best_N)
        scale_N = torch.where(better_N, tried_scale_N, scale_N)
        low_N = torch.where(better_N, tried_low_N, low_N)  # later candidates start from it
        codes_NC = torch.where(better_N[:, None], tried_NC, codes_NC)
    codes_NC = torch.where(flat_N[:, None], 0.0, codes_NC)
    return torch.where(flat_N, 0.0, scale_N), -low_N, codes_NC


def search_scale(x_NC: Tensor, w_NC: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return scales (N,) and codes (N, C) from -most to most - 1, with x = scale · code."""
    peak_N, zero_N = _peak(x_NC)

    def coded(change: float) -> Tensor:
        return ((-(most + change) / peak_N)[:, None] * x_NC).round().clamp(-most, most - 1)

    scale_N, best_N = x_NC.new_zeros(len(x_NC)), x_NC.new_full((len(x_NC),), -1.0)
    codes_NC = coded(0)
    for number in (0, *(n for n in range(-9, 10) if n)):
        tried_NC = coded(0.1 * number)
        wl_NC = w_NC * tried_NC
        sum_lx_N, sum_l2_N = (wl_NC * x_NC).sum(1), (wl_NC * tried_NC).sum(1)
        better_N = (sum_l2_N > 0) & (sum_lx_N.square() > best_N * sum_l2_N)
        ratio_N = sum_lx_N / torch.where(sum_l2_N > 0, sum_l2_N, 1.0)
        scale_N = torch.where(better_N, ratio_N, scale_N)
        best_N = torch.where(better_N, ratio_N * sum_lx_N, best_N)
        codes_NC = torch.where(better_N[:, None], tried_NC, codes_NC)
    return torch.where(zero_N, 0.0, scale_N), torch.where(zero_N[:, None], -most, codes_NC)


def search_codes(x_NC: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the same by changing one code after the other, with weights x²."""
    peak_N, zero_N = _peak(x_NC)
    w_NC = x_NC.square()
    codes_NC = ((-most / peak_N)[:, None] * x_NC).round().clamp(-most, most - 1)
    codes_NC, sum_lx_N, sum_l2_N = _one_by_one(x_NC, w_NC, codes_NC, -most, most - 1)
    some_N = (sum_l2_N > 0) & ~zero_N
    scale_N = torch.where(some_N, sum_lx_N / torch.where(some_N, sum_l2_N, 1.0), 0.0)
    return scale_N, torch.where(zero_N[:, None], -most, codes_NC)


def search_curve(x_NC: Tensor, w_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales (N,) and codes (N, C), with x = scale · CURVE[code]."""
    peak_N, zero_N = _peak(x_NC)
    curve = torch.tensor(CURVE, dtype=torch.float32, device=x_NC.device)
    middles = (curve[1:] + curve[:-1]) / 2

    def coded(inverse_N: Tensor) -> Tensor:
        return torch.bucketize(inverse_N[:, None] * x_NC, middles, right=True)

    scale_N, best_N = x_NC.new_zeros(len(x_NC)), x_NC.new_full((len(x_NC),), -1.0)
    for inverse in (-curve[0], *(number + curve[0] for number in range(-7, 8))):
        q_NC = curve[coded(inverse / peak_N)]
        sum_qx_N, sum_q2_N = (w_NC * q_NC * x_NC).sum(1), (w_NC * q_NC * q_NC).sum(1)
        better_N = (sum_q2_N > 0) & (sum_qx_N.square() > best_N * sum_q2_N)
        ratio_N = sum_qx_N / torch.where(sum_q2_N > 0, sum_q2_N, 1.0)
        scale_N = torch.where(better_N, ratio_N, scale_N)
        best_N = torch.where(better_N, ratio_N * sum_qx_N, best_N)
    scale_N = torch.where(zero_N, 0.0, scale_N)
    some_N = scale_N != 0
    return scale_N, coded(torch.where(some_N, 1 / torch.where(some_N, scale_N, 1.0), 0.0))


def search_positive(x_NC: Tensor, w_NC: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return scales (N,) and codes (N, C) from 0 to `most` of values that are not negative."""
    peak_N = x_NC.amax(1)
    zero_N = peak_N < _TINY
    peak_N = torch.where(zero_N, 1.0, peak_N)

    def coded(inverse_N: Tensor) -> Tensor:
        return (inverse_N[:, None] * x_NC).round().clamp(0, most)

    inverse_N, best_N = most / peak_N, x_NC.new_full((len(x_NC),), torch.inf)
    for number in (0, *(n for n in range(-4, 5) if n)):
        tried_N = (0.1 * number + most) / peak_N
        error_N = (w_NC * (x_NC - coded(tried_N) / tried_N[:, None]).square()).sum(1)
        better_N = error_N < best_N
        best_N = torch.where(better_N, error_N, best_N)
        inverse_N = torch.where(better_N, tried_N, inverse_N)
    codes_NC, sum_lx_N, sum_l2_N = _one_by_one(x_NC, w_NC, coded(inverse_N), 0, most)
    some_N = (sum_l2_N > 0) & ~zero_N
    scale_N = torch.where(some_N, sum_lx_N / torch.where(some_N, sum_l2_N, 1.0), 0.0)
    return scale_N, torch.where(zero_N[:, None], 0.0, codes_NC)


def _one_by_one(
    x_NC: Tensor, w_NC: Tensor, codes_NC: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Change one code after the other where that lowers the error for the best scale. Returns the
    codes, and the sums of w·x·code and w·code² (N,), whose quotient is that scale."""
    sum_lx_N, sum_l2_N = (w_NC * x_NC * codes_NC).sum(1), (w_NC * codes_NC.square()).sum(1)
    for _ in range(5):
        changed = False
        for column in range(x_NC.shape[1]):
            x_N, w_N, code_N = x_NC[:, column], w_NC[:, column], codes_NC[:, column].clone()
            lx_N, l2_N = sum_lx_N - w_N * x_N * code_N, sum_l2_N - w_N * code_N.square()
            positive_N = lx_N > 0
            other_N = (x_N * l2_N / torch.where(positive_N, lx_N, 1.0)).round()
            other_N = other_N.clamp(low, high)
            lx_N, l2_N = lx_N + w_N * x_N * other_N, l2_N + w_N * other_N.square()
            better_N = (
                positive_N
                & (other_N != code_N)
                & (l2_N > 0)
                & (lx_N.square() * sum_l2_N > sum_lx_N.square() * l2_N)
            )
            codes_NC[:, column] = torch.where(better_N, other_N, code_N)
            sum_lx_N = torch.where(better_N, lx_N, sum_lx_N)
            sum_l2_N = torch.where(better_N, l2_N, sum_l2_N)
            changed = changed or bool(better_N.any())
        if not changed:
            break
    return codes_NC, sum_lx_N, sum_l2_N


def _peak(x_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Return each group's value of largest magnitude, 1 for groups of zeros, and which are."""
    peak_N = x_NC.gather(1, x_NC.abs().argmax(1, keepdim=True))[:, 0]
    zero_N = peak_N.abs() < _TINY
    return torch.where(zero_N, 1.0, peak_N), zero_N
