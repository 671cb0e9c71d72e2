"""Rows of heads in parts: tuples of tiles, which have powers of two. The parts are the first FIRST
elements of a head and its REST others, if any; or one of STEP elements each.

Suffixes of tiles: M rows, V elements of a value.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

import triton
import triton.language as tl


@triton.jit
def columns(part: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr, STEP: tl.constexpr):
    """Return the elements of a head that a part has."""
    if STEP > 1:
        return STEP * tl.arange(0, FIRST // STEP) + part
    elif part == 0:
        return tl.arange(0, FIRST)
    else:
        return FIRST + tl.arange(0, REST)


@triton.jit
def zeros(BM: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr, WORDS: tl.constexpr):
    """Return zeros for BM rows in parts."""
    if WORDS:
        x = tl.zeros([BM, FIRST // 4], tl.float32)
        return (x, x, x, x)
    elif REST > 0:
        return (tl.zeros([BM, FIRST], tl.float32), tl.zeros([BM, REST], tl.float32))
    else:
        return (tl.zeros([BM, FIRST], tl.float32),)


@triton.jit
def added(x_MV, keep_M, y_MV, add_M):
    """Return x · keep + y · add of rows in parts."""
    sum_MV = ()
    for i in tl.static_range(len(x_MV)):
        sum_MV = sum_MV + (tl.fma(x_MV[i], keep_M[:, None], y_MV[i] * add_M[:, None]),)
    return sum_MV


@triton.jit
def put(
    out, row_M, x_MV, mask_M,
    V: tl.constexpr, V1: tl.constexpr, V2: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Store rows of values."""
    for i in tl.static_range(len(x_MV)):
        v = columns(i, V1, V2, 4 if WORDS else 1)
        tl.store(
            out + row_M[:, None] * V + v[None, :],
            x_MV[i].to(out.dtype.element_ty),
            mask=mask_M[:, None] & (v[None, :] < V),
        )
