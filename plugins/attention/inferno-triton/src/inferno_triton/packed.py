"""The kernel of products with 4-bit matrices in groups (`inferno.nn.IntGroups`), which are unpacked
on the way to the tensor cores.

Suffixes of tiles: O rows of the matrix, T tokens, K columns, B bytes of codes, G groups of columns.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def int4_product(
    x, data, scales, zeros, out, tokens, outputs, columns, x_t, splits,
    GROUP: tl.constexpr, BO: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    ZEROS: tl.constexpr,
):  # fmt: skip
    """Multiply. Grid: (blocks of outputs, blocks of tokens, splits of the columns). `out` has a
    float32 result for each split. The matrix is the left operand: instructions of tensor cores have
    64 rows or more, and there are often fewer tokens. ZEROS: there are zero points; otherwise they
    are 8."""
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    t = tl.program_id(1) * BT + tl.arange(0, BT)
    split = tl.program_id(2)
    GROUPS: tl.constexpr = BK // GROUP
    k, b, g = tl.arange(0, BK), tl.arange(0, BK // 2), tl.arange(0, GROUPS)
    mask_O, mask_T = o < outputs, t < tokens
    row_O = o.to(tl.int64)
    each = tl.cdiv(tl.cdiv(columns, splits), BK) * BK
    low = split * each
    high = tl.minimum(low + each, columns)
    acc_OT = tl.zeros([BO, BT], tl.float32)
    for at in range(low, high, BK):
        data_OB = tl.load(
            data + row_O[:, None] * (columns // 2) + at // 2 + b[None, :],
            mask=mask_O[:, None],
            other=0,
        )
        at_OG = row_O[:, None] * (columns // GROUP) + at // GROUP + g[None, :]
        scale_OG = tl.load(scales + at_OG, mask=mask_O[:, None], other=0.0).to(tl.float32)
        codes_OK = tl.interleave(data_OB & 15, data_OB >> 4).to(tl.float32)
        codes_OGK = codes_OK.reshape(BO, GROUPS, GROUP)
        if ZEROS:
            zero_OG = tl.load(zeros + at_OG, mask=mask_O[:, None], other=0.0).to(tl.float32)
            codes_OGK = codes_OGK - zero_OG[:, :, None]
        else:
            codes_OGK = codes_OGK - 8.0
        weight_OK = (codes_OGK * scale_OG[:, :, None]).to(x.dtype.element_ty).reshape(BO, BK)
        x_KT = tl.load(x + t[None, :] * x_t + at + k[:, None], mask=mask_T[None, :], other=0.0)
        acc_OT = tl.dot(weight_OK, x_KT, acc_OT)
    to_OT = (split * tokens + t[None, :]).to(tl.int64) * outputs + o[:, None]
    tl.store(out + to_OT, acc_OT, mask=mask_O[:, None] & mask_T[None, :])
