"""Kernels of the operators between matrix products: each program computes one row, or one token's
heads, in float32, and rounds where torch's operators do.

Suffixes of tiles: D elements of a row, H heads, E rotated pairs of a head, R its other elements.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def weighted(x, weight, dtype: tl.constexpr):
    """Return x · weight, both rounded to `dtype` first if the weight has it."""
    if weight.dtype == dtype:
        return (x.to(dtype).to(tl.float32) * weight.to(tl.float32)).to(dtype)
    else:
        return (x * weight.to(tl.float32)).to(dtype)


@triton.jit
def rms_norm(
    x, delta, weight, total, out, eps, x_t, delta_t, width,
    DP: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Normalize rows. Grid: (rows,). ADD: of x + delta, which is stored in `total`."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DP)
    mask_D = d < width
    x_D = tl.load(x + row * x_t + d, mask=mask_D, other=0.0).to(tl.float32)
    if ADD:
        x_D += tl.load(delta + row * delta_t + d, mask=mask_D, other=0.0).to(tl.float32)
        sum_D = x_D.to(total.dtype.element_ty)
        tl.store(total + row * width + d, sum_D, mask=mask_D)
        x_D = sum_D.to(tl.float32)
    x_D = x_D * tl.rsqrt(tl.sum(x_D * x_D, 0) / width + eps)
    weight_D = tl.load(weight + d, mask=mask_D, other=0.0)
    tl.store(out + row * width + d, weighted(x_D, weight_D, out.dtype.element_ty), mask=mask_D)


@triton.jit
def norm_rope(
    x, weight, cos, sin, out, eps, x_t, x_h, heads,
    C: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, RP: tl.constexpr, BH: tl.constexpr,
    NORM: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Normalize BH heads of a token, and rotate their first 2 E elements. Grid: (tokens, blocks of
    heads). RP: 0 if all elements are rotated."""
    token = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    e = tl.arange(0, EP)
    STEP: tl.constexpr = 2 if INTERLEAVED else 1
    APART: tl.constexpr = 1 if INTERLEAVED else E
    dtype: tl.constexpr = out.dtype.element_ty
    mask_HE = (h < heads)[:, None] & (e < E)[None, :]
    at_H = token * x_t + h * x_h
    a_HE = tl.load(x + at_H[:, None] + e[None, :] * STEP, mask=mask_HE, other=0.0).to(tl.float32)
    b_HE = tl.load(x + at_H[:, None] + e[None, :] * STEP + APART, mask=mask_HE, other=0.0)
    b_HE = b_HE.to(tl.float32)
    if RP > 0:
        r = 2 * E + tl.arange(0, RP)
        mask_HR = (h < heads)[:, None] & (r < C)[None, :]
        rest_HR = tl.load(x + at_H[:, None] + r[None, :], mask=mask_HR, other=0.0).to(tl.float32)
    if NORM:
        squares_H = tl.sum(a_HE * a_HE, 1) + tl.sum(b_HE * b_HE, 1)
        if RP > 0:
            squares_H += tl.sum(rest_HR * rest_HR, 1)
        factor_H = tl.rsqrt(squares_H / C + eps)
        a_E = tl.load(weight + e * STEP, mask=e < E, other=0.0)
        b_E = tl.load(weight + e * STEP + APART, mask=e < E, other=0.0)
        a_HE = weighted(a_HE * factor_H[:, None], a_E[None, :], dtype).to(tl.float32)
        b_HE = weighted(b_HE * factor_H[:, None], b_E[None, :], dtype).to(tl.float32)
        if RP > 0:
            rest_R = tl.load(weight + r, mask=r < C, other=0.0)
            rest_HR = weighted(rest_HR * factor_H[:, None], rest_R[None, :], dtype).to(tl.float32)
    cos_E = tl.load(cos + token * E + e, mask=e < E, other=0.0)[None, :]
    sin_E = tl.load(sin + token * E + e, mask=e < E, other=0.0)[None, :]
    to_H = (token * heads + h) * C
    turned_HE = (a_HE * cos_E - b_HE * sin_E).to(dtype)
    tl.store(out + to_H[:, None] + e[None, :] * STEP, turned_HE, mask=mask_HE)
    turned_HE = (b_HE * cos_E + a_HE * sin_E).to(dtype)
    tl.store(out + to_H[:, None] + e[None, :] * STEP + APART, turned_HE, mask=mask_HE)
    if RP > 0:
        tl.store(out + to_H[:, None] + r[None, :], rest_HR.to(dtype), mask=mask_HR)


@triton.jit
def silu_mul(gate, up, out, gate_t, up_t, width, DB: tl.constexpr):
    """Gate rows. Grid: (rows, blocks of DB elements)."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * DB + tl.arange(0, DB)
    mask_D = d < width
    dtype: tl.constexpr = out.dtype.element_ty
    gate_D = tl.load(gate + row * gate_t + d, mask=mask_D, other=0.0).to(tl.float32)
    up_D = tl.load(up + row * up_t + d, mask=mask_D, other=0.0).to(tl.float32)
    silu_D = (gate_D / (1.0 + tl.exp(-gate_D))).to(dtype).to(tl.float32)
    tl.store(out + row * width + d, (silu_D * up_D).to(dtype), mask=mask_D)


@triton.jit
def argmax(x, out, x_t, width, DB: tl.constexpr):
    """Find the best token of a row, DB at once: -1 where that is not finite, or a logit is no
    number. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DB)
    best_D = tl.full([DB], -float("inf"), tl.float32)
    id_D = tl.zeros([DB], tl.int32)
    for at in range(0, width, DB):
        x_D = tl.load(x + row * x_t + at + d, mask=at + d < width, other=-float("inf"))
        x_D = x_D.to(tl.float32)
        x_D = tl.where(x_D == x_D, x_D, float("inf"))
        better_D = x_D > best_D
        best_D = tl.where(better_D, x_D, best_D)
        id_D = tl.where(better_D, at + d, id_D)
    best = tl.max(best_D, 0)
    winner = tl.min(tl.where(best_D == best, id_D, width), 0)
    tl.store(out + row, tl.where(tl.abs(best) < float("inf"), winner, -1).to(tl.int64))


@triton.jit(do_not_specialize=["count"])
def add_parts(parts, out, size, count, DB: tl.constexpr):
    """Add `count` arrays of `size` elements in order. Grid: (blocks of DB elements,)."""
    d = tl.program_id(0).to(tl.int64) * DB + tl.arange(0, DB)
    sum_D = tl.zeros([DB], tl.float32)
    for _ in range(count):
        sum_D += tl.load(parts + d, mask=d < size, other=0.0)
        parts += size
    tl.store(out + d, sum_D.to(out.dtype.element_ty), mask=d < size)
