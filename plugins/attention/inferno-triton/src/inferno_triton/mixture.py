"""Kernels of routed experts: selection, sorting by expert, products with dense matrices, sums.

Suffixes of tiles: E experts, K experts of a token, N pairs of a token and one of its experts, D
elements of a row, O rows of a matrix, T rows of x, C columns.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def select(
    logits, correction, experts, weights, tokens, scale,
    E: tl.constexpr, EP: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BT: tl.constexpr,
    SIGMOID: tl.constexpr, NORMALIZE: tl.constexpr, CORRECTION: tl.constexpr,
):  # fmt: skip
    """Select each token's experts and compute their weights. The best expert is first; among
    equals, the lower id. NaN is selected last. Grid: (blocks of tokens,)."""
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    e, k = tl.arange(0, EP), tl.arange(0, KP)
    mask_TE = (t < tokens)[:, None] & (e < E)[None, :]
    x_TE = tl.load(logits + t[:, None] * E + e[None, :], mask=mask_TE, other=0.0)
    if SIGMOID:
        score_TE = 1.0 / (1.0 + tl.exp(-x_TE))
    else:
        x_TE = tl.where((e < E)[None, :], x_TE, -float("inf"))
        power_TE = tl.exp(x_TE - tl.max(x_TE, 1)[:, None])
        score_TE = power_TE / tl.sum(power_TE, 1)[:, None]
    choice_TE = score_TE
    if CORRECTION:
        choice_TE = choice_TE + tl.load(correction + e, mask=e < E, other=0.0)[None, :]
    choice_TE = tl.where(choice_TE > -1e38, choice_TE, -1e38)
    choice_TE = tl.where((e < E)[None, :], choice_TE, -float("inf"))
    expert_TK = tl.zeros([BT, KP], tl.int32)
    weight_TK = tl.zeros([BT, KP], tl.float32)
    for place in range(K):
        best_T = tl.max(choice_TE, 1)
        expert_T = tl.min(tl.where(choice_TE == best_T[:, None], e[None, :], EP), 1)
        own_TE = e[None, :] == expert_T[:, None]
        weight_T = tl.sum(tl.where(own_TE, score_TE, 0.0), 1)
        expert_TK = tl.where(k[None, :] == place, expert_T[:, None], expert_TK)
        weight_TK = tl.where(k[None, :] == place, weight_T[:, None], weight_TK)
        choice_TE = tl.where(own_TE, -float("inf"), choice_TE)
    if NORMALIZE:
        weight_TK = weight_TK / (tl.sum(weight_TK, 1) + 1e-20)[:, None]
    at_TK = t[:, None] * K + k[None, :]
    mask_TK = (t < tokens)[:, None] & (k < K)[None, :]
    tl.store(experts + at_TK, expert_TK.to(tl.int64), mask=mask_TK)
    tl.store(weights + at_TK, weight_TK * scale, mask=mask_TK)


@triton.jit(do_not_specialize=["count"])
def sort(experts, tokens, starts, places, count, top, BN: tl.constexpr):
    """Sort pairs by expert, then by token. Grid: (experts,). Each program counts the pairs of lower
    experts, then finds the pairs of its expert."""
    expert, n = tl.program_id(0), tl.arange(0, BN)
    below_N = tl.zeros([BN], tl.int32)
    for at in range(0, count, BN):
        id_N = tl.load(experts + at + n, mask=at + n < count, other=1 << 30)
        below_N += (id_N < expert).to(tl.int32)
    first = tl.sum(below_N, 0)
    tl.store(starts + expert, first)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts + expert + 1, count)
    for at in range(0, count, BN):
        id_N = tl.load(experts + at + n, mask=at + n < count, other=1 << 30)
        own_N = (id_N == expert).to(tl.int32)
        row_N = first + tl.cumsum(own_N, 0) - own_N
        tl.store(tokens + row_N, ((at + n) // top).to(tl.int64), mask=own_N > 0)
        tl.store(places + at + n, row_N.to(tl.int64), mask=own_N > 0)
        first += tl.sum(own_N, 0)


@triton.jit
def combine(y, places, weights, out, width, y_n, K: tl.constexpr, BD: tl.constexpr):
    """Compute a token's weighted sum in float32. Grid: (tokens, blocks of elements)."""
    token = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    sum_D = tl.zeros([BD], tl.float32)
    for place in range(K):
        row = tl.load(places + token * K + place)
        weight = tl.load(weights + token * K + place)
        y_D = tl.load(y + row * y_n + d, mask=d < width, other=0.0)
        sum_D += weight * y_D.to(tl.float32)
    tl.store(out + token * width + d, sum_D.to(out.dtype.element_ty), mask=d < width)


@triton.jit
def expert_of(starts, block, E: tl.constexpr, EP: tl.constexpr, BT: tl.constexpr):
    """Return the expert of a block of at most BT rows, the block's first row, and the row after its
    last one. The blocks of an expert are consecutive. If there is no such block, the range is
    empty."""
    e = tl.arange(0, EP)
    first_E = tl.load(starts + e, mask=e < E, other=0)
    stop_E = tl.load(starts + e + 1, mask=e < E, other=0)
    blocks_E = (stop_E - first_E + BT - 1) // BT
    past_E = tl.cumsum(blocks_E, 0)
    expert = tl.sum((past_E <= block).to(tl.int32), 0)
    own_E = e == expert  # none, if there is no such block
    first = tl.sum(tl.where(own_E, first_E + (block - past_E + blocks_E) * BT, 0), 0)
    stop = tl.sum(tl.where(own_E, stop_E, 0), 0)
    return expert, first, tl.minimum(stop, first + BT)


@triton.jit
def rows_of(starts, o, tokens, outputs, EXPERTS: tl.constexpr, EP: tl.constexpr, BT: tl.constexpr):
    """Return, for a block of at most BT rows of x, the rows of the matrices that compute outputs
    `o`, the block's first row, and a row that ends it. EXPERTS: rows of x are sorted by expert, and
    the range may be empty."""
    row_O = o
    if EXPERTS > 0:
        expert, first, stop = expert_of(starts, tl.program_id(1), EXPERTS, EP, BT)
        row_O = o + expert * outputs
    else:
        first = tl.program_id(1) * BT
        stop = tokens
    return row_O, first, stop


@triton.jit
def grouped(
    x, weight, starts, out, outputs, columns, x_t,
    EXPERTS: tl.constexpr, EP: tl.constexpr, BO: tl.constexpr, BT: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Multiply rows of x, sorted by expert, by their experts' matrices. Grid: (blocks of outputs,
    blocks of rows)."""
    expert, first, stop = expert_of(starts, tl.program_id(1), EXPERTS, EP, BT)
    if first >= stop:
        return
    o, c = tl.program_id(0) * BO + tl.arange(0, BO), tl.arange(0, BC)
    t = (first + tl.arange(0, BT)).to(tl.int64)
    mask_O, mask_T = o < outputs, t < stop
    line_O = expert.to(tl.int64) * outputs + o
    acc_OT = tl.zeros([BO, BT], tl.float32)
    for at in range(0, columns, BC):
        mask_C = at + c < columns
        w_OC = tl.load(
            weight + line_O[:, None] * columns + at + c[None, :],
            mask=mask_O[:, None] & mask_C[None, :],
            other=0.0,
        )
        x_CT = tl.load(
            x + t[None, :] * x_t + at + c[:, None],
            mask=mask_T[None, :] & mask_C[:, None],
            other=0.0,
        )
        acc_OT = tl.dot(w_OC, x_CT, acc_OT, input_precision="ieee")
    tl.store(
        out + t[None, :] * outputs + o[:, None],
        acc_OT.to(out.dtype.element_ty),
        mask=mask_O[:, None] & mask_T[None, :],
    )
