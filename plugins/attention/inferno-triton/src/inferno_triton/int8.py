"""Kernels of matrices of 8-bit integers, with a scale for each row, that are multiplied by
activations rounded to 8 bits, with a scale for each token (`contracts.W8A8Layout`).

Suffixes of tiles: O rows of the matrix, T tokens, C columns.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from inferno_triton.mixture import rows_of


@triton.jit
def quantize(x, out, scales, sums, columns, x_t, BC: tl.constexpr):
    """Round a token to integers of -127 to 127, and sum them. Grid: (tokens,). One with an infinity
    or what is not a number gets such a scale."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BC)
    most_C = tl.zeros([BC], tl.float32)
    for at in range(0, columns, BC):
        x_C = tl.load(x + row * x_t + at + c, mask=at + c < columns, other=0.0).to(tl.float32)
        most_C = tl.maximum(most_C, tl.where(x_C == x_C, tl.abs(x_C), float("inf")))
    most = tl.max(most_C, 0)
    small, finite = most < 2.0**-100, most < float("inf")  # a small one's reciprocal may overflow
    inverse = tl.math.div_rn(1.0, tl.where(small, float("inf"), most)) * 127.0  # as torch does it
    scale = tl.where(small, 0.0, tl.where(finite, tl.math.div_rn(most, 127.0), float("nan")))
    sum_C = tl.zeros([BC], tl.int32)
    for at in range(0, columns, BC):
        x_C = tl.load(x + row * x_t + at + c, mask=at + c < columns, other=0.0).to(tl.float32)
        x_C = tl.where(tl.abs(x_C) < float("inf"), x_C, 0.0)
        # What is added and subtracted again leaves no bits below 1: rounded, halves to even.
        code_C = (x_C * inverse + 12582912.0 - 12582912.0).to(tl.int32)
        tl.store(out + row * columns + at + c, code_C.to(tl.int8), mask=at + c < columns)
        sum_C += code_C
    tl.store(scales + row, scale)
    tl.store(sums + row, tl.sum(sum_C, 0))


@triton.jit(do_not_specialize=["tokens", "splits"])
def product(
    x, x_scales, x_sums, data, scales, zeros, starts, out, tokens, outputs, columns, splits,
    ZEROS: tl.constexpr, EXPERTS: tl.constexpr, EP: tl.constexpr, BO: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Multiply. Grid: (blocks of outputs, blocks of tokens, splits of the columns). `out` has a
    float32 result for each split. EXPERTS: rows of x are sorted by expert."""
    o, c = tl.program_id(0) * BO + tl.arange(0, BO), tl.arange(0, BC)
    split = tl.program_id(2)
    row_O, first, stop = rows_of(starts, o, tokens, outputs, EXPERTS, EP, BT)
    if EXPERTS > 0:
        if first >= stop:
            return
    t = (first + tl.arange(0, BT)).to(tl.int64)
    mask_O, mask_T = o < outputs, t < stop
    each = tl.cdiv(tl.cdiv(columns, BC), splits) * BC
    acc_OT = tl.zeros([BO, BT], tl.int32)
    for at in range(split * each, tl.minimum(split * each + each, columns), BC):
        mask_C = at + c < columns
        w_OC = tl.load(
            data + row_O.to(tl.int64)[:, None] * columns + at + c[None, :],
            mask=mask_O[:, None] & mask_C[None, :],
            other=0,
        )
        x_CT = tl.load(
            x + t[None, :] * columns + at + c[:, None],
            mask=mask_T[None, :] & mask_C[:, None],
            other=0,
        )
        acc_OT = tl.dot(w_OC, x_CT, acc_OT, out_dtype=tl.int32)
    y_OT = acc_OT.to(tl.float32)
    if ZEROS:
        sum_T = tl.load(x_sums + t, mask=mask_T & (split == 0), other=0).to(tl.float32)
        zero_O = tl.load(zeros + row_O, mask=mask_O, other=0.0)
        y_OT -= zero_O[:, None] * sum_T[None, :]
    x_scale_T = tl.load(x_scales + t, mask=mask_T, other=0.0)
    scale_O = tl.load(scales + row_O, mask=mask_O, other=0.0)
    y_OT = y_OT * x_scale_T[None, :] * scale_O[:, None]
    to_OT = (split * tokens + t[None, :]) * outputs + o[:, None]
    tl.store(out + to_OT, y_OT.to(out.dtype.element_ty), mask=mask_O[:, None] & mask_T[None, :])
