"""Kernels of low-rank adapters. The tokens of a tile that have the same slot are multiplied by its
matrices at once.

Suffixes of tiles: T tokens, R rows of a slot's first matrices, C columns, N rank, O outputs.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def slot_of(slots, tokens, MOST: tl.constexpr, BT: tl.constexpr):
    """Return the tokens of this program's tile, the slot of each, and the slot whose tokens it
    multiplies. MOST programs have the same tile: each takes another of its slots, in the order of
    their first tokens, and those for which none is left get -1."""
    i = tl.arange(0, BT)
    t = (tl.program_id(0) // MOST * BT + i).to(tl.int64)
    slot_T = tl.load(slots + t, mask=t < tokens, other=-1)
    before_TT = (slot_T[:, None] == slot_T[None, :]) & (i[None, :] < i[:, None])
    first_T = (slot_T >= 0) & (tl.sum(before_TT.to(tl.int32), 1) == 0)
    place_T = tl.cumsum(first_T.to(tl.int32), 0) - 1
    own_T = first_T & (place_T == tl.program_id(0) % MOST)
    return t, slot_T, tl.max(tl.where(own_T, slot_T, -1), 0)


@triton.jit(do_not_specialize=["tokens"])
def shrink(
    x, down, slots, out, tokens, ranks, columns, x_t,
    MOST: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Multiply tokens by the first matrices of their slots; zeros for those without one. Grid:
    (tiles x MOST, blocks of rows, splits of the columns)."""
    t, slot_T, slot = slot_of(slots, tokens, MOST, BT)
    r, c = tl.program_id(1) * BR + tl.arange(0, BR), tl.arange(0, BC)
    mask_R = r < ranks
    split, splits = tl.program_id(2), tl.num_programs(2)
    out_TR = out + (split.to(tl.int64) * tokens + t[:, None]) * ranks + r[None, :]
    none_T = (slot_T < 0) & (t < tokens) & (tl.program_id(0) % MOST == 0)
    zeros_TR = tl.zeros([BT, BR], tl.float32)
    tl.store(out_TR, zeros_TR, mask=none_T[:, None] & mask_R[None, :])
    if slot < 0:
        return
    own_T = slot_T == slot
    line_R = slot * ranks + r
    acc_TR = tl.zeros([BT, BR], tl.float32)
    for at in range(split * BC, columns, splits * BC):
        mask_C = at + c < columns
        x_TC = tl.load(
            x + t[:, None] * x_t + at + c[None, :],
            mask=own_T[:, None] & mask_C[None, :],
            other=0.0,
        )
        w_CR = tl.load(
            down + line_R[None, :] * columns + at + c[:, None],
            mask=mask_R[None, :] & mask_C[:, None],
            other=0.0,
        )
        acc_TR = tl.dot(x_TC.to(w_CR.dtype), w_CR, acc_TR, input_precision="ieee")
    tl.store(out_TR, acc_TR, mask=own_T[:, None] & mask_R[None, :])


@triton.jit(do_not_specialize=["tokens"])
def expand(
    y, h, up, slots, tokens, rank, outputs, y_t, h_t,
    MOST: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Add to tokens of y their products with the second matrix of their slots. Grid: (tiles x MOST,
    blocks of outputs)."""
    t, slot_T, slot = slot_of(slots, tokens, MOST, BT)
    if slot < 0:
        return
    o, n = tl.program_id(1) * BO + tl.arange(0, BO), tl.arange(0, BN)
    mask_O, own_T = o < outputs, slot_T == slot
    acc_TO = tl.zeros([BT, BO], tl.float32)
    for at in range(0, rank, BN):
        mask_N = at + n < rank
        h_TN = tl.load(
            h + t[:, None] * h_t + at + n[None, :],
            mask=own_T[:, None] & mask_N[None, :],
            other=0.0,
        )
        w_NO = tl.load(
            up + (slot * rank + at + n)[:, None] * outputs + o[None, :],
            mask=mask_N[:, None] & mask_O[None, :],
            other=0.0,
        )
        acc_TO = tl.dot(h_TN.to(w_NO.dtype), w_NO, acc_TO, input_precision="ieee")
    y_TO, mask_TO = y + t[:, None] * y_t + o[None, :], own_T[:, None] & mask_O[None, :]
    sum_TO = tl.load(y_TO, mask=mask_TO, other=0.0).to(tl.float32) + acc_TO
    tl.store(y_TO, sum_TO.to(y.dtype.element_ty), mask=mask_TO)
