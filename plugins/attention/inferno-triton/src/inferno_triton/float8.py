"""Kernels of matrices of 8-bit floats (e4m3), with a scale for each block of rows and columns, or
for each row.

KIND says how: "fp8" multiplies 8-bit activations, with a scale for each token and 128 columns;
"wide" converts values to the activations' type; "fp8_bits" does so by integer operations, for chips
without FP8.

Suffixes of tiles: O rows of the matrix, T tokens, C columns.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from inferno_triton.codes import elements, quantized
from inferno_triton.mixture import rows_of


@triton.jit(do_not_specialize=["tokens"])
def quantize(x, out, scales, tokens, columns, x_t, BT: tl.constexpr):
    """Round activations to 8 bits, with a scale for each token and 128 columns: the scales of a
    group of columns are contiguous. Grid: (blocks of tokens, groups of columns)."""
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    group = tl.program_id(1)
    c = group * 128 + tl.arange(0, 128)
    mask_TC = (t < tokens)[:, None] & (c < columns)[None, :]
    x_TC = tl.load(x + t[:, None] * x_t + c[None, :], mask=mask_TC, other=0.0)
    codes_TC, scales_T = quantized(x_TC, "fp8")
    tl.store(out + t[:, None] * columns + c[None, :], codes_TC, mask=mask_TC)
    tl.store(scales + group * tokens + t, scales_T, mask=t < tokens)


@triton.jit(do_not_specialize=["tokens", "splits"])
def product(
    x, x_scales, data, scales, starts, out, tokens, outputs, columns, x_t, splits,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr, KIND: tl.constexpr,
    EXPERTS: tl.constexpr, EP: tl.constexpr, BO: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Multiply. Grid: (blocks of outputs, blocks of tokens, splits of the columns). A scale is of
    ROWS rows and COLUMNS columns, 0 of all, and ACROSS of them are in a row. `out` has a float32
    result for each split. EXPERTS: rows of x are sorted by expert."""
    o, c = tl.program_id(0) * BO + tl.arange(0, BO), tl.arange(0, 128)
    split = tl.program_id(2)
    row_O, first, stop = rows_of(starts, o, tokens, outputs, EXPERTS, EP, BT)
    if EXPERTS > 0:
        if first >= stop:
            return
    t = (first + tl.arange(0, BT)).to(tl.int64)
    mask_O, mask_T = o < outputs, t < stop
    each = tl.cdiv(tl.cdiv(columns, 128), splits) * 128
    acc_OT = tl.zeros([BO, BT], tl.float32)
    for at in range(split * each, tl.minimum(split * each + each, columns), 128):
        mask_C = at + c < columns
        w_OC = tl.load(
            data + row_O.to(tl.int64)[:, None] * columns + at + c[None, :],
            mask=mask_O[:, None] & mask_C[None, :],
            other=0.0,
        )
        x_CT = tl.load(
            x + t[None, :] * x_t + at + c[:, None],
            mask=mask_T[None, :] & mask_C[:, None],
            other=0.0,
        )
        if KIND == "fp8":
            part_OT = tl.dot(w_OC, x_CT)
            x_scale_T = tl.load(x_scales + (at // 128) * tokens + t, mask=mask_T, other=0.0)
            part_OT = part_OT * x_scale_T[None, :]
        else:
            part_OT = tl.dot(elements(w_OC, x_CT, KIND), x_CT)
        if COLUMNS > 0:
            scale_O = tl.load(
                scales + row_O // ROWS * ACROSS + at // COLUMNS, mask=mask_O, other=0.0
            )
            part_OT = part_OT * scale_O[:, None]
        acc_OT += part_OT
    if COLUMNS == 0:
        acc_OT = acc_OT * tl.load(scales + row_O // ROWS, mask=mask_O, other=0.0)[:, None]
    to_OT = (split * tokens + t[None, :]) * outputs + o[:, None]
    tl.store(out + to_OT, acc_OT.to(out.dtype.element_ty), mask=mask_O[:, None] & mask_T[None, :])
