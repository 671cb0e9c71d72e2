"""Kernels of paged attention: storing keys and values, attention of packed query heads, and merging
the results of split contexts.

Whatever varies from step to step is read from device memory, and the grid follows from the step's
shape alone: a captured launch is right for every step of that shape.

The cache is [block][key/value head][token of the block][element]. Elements are of the compute
dtype, or of 8 bits with a float32 scale for each token and head. KIND says how they are stored:
"auto", "int8", "fp8" (converted by the chip), "fp8_bits" (by integer operations, for chips without
FP8).

Suffixes of tiles: M rows (queries x query heads of one key/value head), N keys, C elements of a
key, V of a value, T tokens of a step, S splits. A head dimension is computed in two parts, as tiles
have powers of two: C1 + C2 elements, V1 + V2.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
SMALLEST = tl.constexpr(2e-36)
"""A row whose largest element is smaller is stored as zeros: the reciprocal of its scale would
overflow."""


@triton.jit
def quantized(x_TC, KIND: tl.constexpr):
    """Round rows to 8 bits with a scale each. Returns the codes, as they are stored, and the
    scales."""
    x_TC = x_TC.to(tl.float32)
    top_T = tl.max(tl.abs(x_TC), 1)
    LARGEST: tl.constexpr = 127.0 if KIND == "int8" else 448.0
    usable_T = top_T > SMALLEST
    x_TC = x_TC * tl.where(usable_T, LARGEST / tl.where(usable_T, top_T, 1.0), 0.0)[:, None]
    scales_T = tl.where(usable_T, top_T / LARGEST, 0.0)
    if KIND == "int8":
        # Adding 1.5 * 2**23 leaves the nearest integer, ties to even, in the low bits.
        bits_TC = (x_TC + 12582912.0).to(tl.int32, bitcast=True)
        return (bits_TC - 0x4B400000).to(tl.int8), scales_T
    elif KIND == "fp8":
        return x_TC.to(tl.float8e4nv), scales_T
    else:
        return fp8_bits(x_TC), scales_T


@triton.jit
def fp8_bits(x_TC):
    """Return float32 numbers of at most 448 as the bits of e4m3, rounded to nearest, ties to
    even."""
    bits_TC = x_TC.to(tl.int32, bitcast=True)
    abs_TC = bits_TC & 0x7FFFFFFF
    # Cut 20 bits of the mantissa, and rebase the exponent from 127 to 7.
    normal_TC = ((abs_TC + 0x7FFFF + ((abs_TC >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2**-6, codes are multiples of 2**-9: the low bits of 2**14 + x.
    small_TC = (tl.abs(x_TC) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code_TC = tl.where(abs_TC < 0x3C800000, small_TC, normal_TC)
    return (code_TC | ((bits_TC >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def elements(x, like, KIND: tl.constexpr):
    """Convert elements of the cache to the dtype of `like`, without their scale."""
    if KIND == "auto":
        return x
    elif KIND == "fp8_bits":
        wide = x.to(tl.int16)
        # The exponent of float16 is based at 15, that of e4m3 at 7. The code of NaN becomes 480.
        half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
        return (half * 256.0).to(like.dtype)
    else:
        return x.to(like.dtype)


@triton.jit(do_not_specialize=["num_tokens"])
def store(
    k, v, k_cache, v_cache, k_scales, v_scales, slots, num_tokens, k_t, k_h, v_t, v_h,
    HEADS: tl.constexpr, C: tl.constexpr, V: tl.constexpr, CP: tl.constexpr, VP: tl.constexpr,
    PAGE: tl.constexpr, BT: tl.constexpr, VALUES: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Store BT tokens of one head. Grid: (blocks of tokens, heads). A token of slot -1 is not
    stored. VALUES: there are values besides the keys."""
    t, head = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1)
    slot_T = tl.load(slots + t, mask=t < num_tokens, other=-1)
    live_T = slot_T >= 0
    line_T = (slot_T // PAGE * HEADS + head) * PAGE + slot_T % PAGE
    row_T = t.to(tl.int64)
    c = tl.arange(0, CP)
    mask_TC = live_T[:, None] & (c[None, :] < C)
    x_TC = tl.load(k + row_T[:, None] * k_t + head * k_h + c[None, :], mask=mask_TC, other=0.0)
    if KIND == "auto":
        tl.store(k_cache + line_T[:, None] * C + c[None, :], x_TC, mask=mask_TC)
    else:
        codes_TC, scales_T = quantized(x_TC, KIND)
        tl.store(k_cache + line_T[:, None] * C + c[None, :], codes_TC, mask=mask_TC)
        tl.store(k_scales + line_T, scales_T, mask=live_T)
    if VALUES:
        d = tl.arange(0, VP)
        mask_TV = live_T[:, None] & (d[None, :] < V)
        y_TV = tl.load(v + row_T[:, None] * v_t + head * v_h + d[None, :], mask=mask_TV, other=0.0)
        if KIND == "auto":
            tl.store(v_cache + line_T[:, None] * V + d[None, :], y_TV, mask=mask_TV)
        else:
            codes_TV, scales_T = quantized(y_TV, KIND)
            tl.store(v_cache + line_T[:, None] * V + d[None, :], codes_TV, mask=mask_TV)
            tl.store(v_scales + line_T, scales_T, mask=live_T)


@triton.jit
def shares(best, other):
    """Return the greater of two maxima, base 2, and the factors of sums that are relative to each
    of them. A maximum of nothing is -inf."""
    top = tl.maximum(best, other)
    base = tl.where(top == -float("inf"), 0.0, top)
    return top, tl.exp2(best - base), tl.exp2(other - base)


@triton.jit(do_not_specialize=["table_s", "num_seqs", "splits"])
def attend(
    q, k_cache, v_cache, k_scales, v_scales, sinks, tables, starts, contexts, out, sums, counts,
    amplitudes, used, lines, line_s, num_waves,
    scale, cap, window, q_t, q_h, table_s, num_seqs, splits,
    HEADS: tl.constexpr, G: tl.constexpr, GB: tl.constexpr, C: tl.constexpr, C1: tl.constexpr,
    C2: tl.constexpr, V: tl.constexpr, V1: tl.constexpr, V2: tl.constexpr, VS: tl.constexpr,
    PAGE: tl.constexpr, BN: tl.constexpr, BQ: tl.constexpr, BM: tl.constexpr, KIND: tl.constexpr,
    REUSE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
    STRETCH: tl.constexpr, LONG: tl.constexpr, SPLIT: tl.constexpr, SINGLE: tl.constexpr,
    WAVES: tl.constexpr,
):  # fmt: skip
    """Attend from BQ queries of a sequence, GB query heads each. Grid: (blocks of queries,
    key/value heads x blocks of their G query heads, programs that share a context).

    A row's sums begin anew at every multiple of STRETCH keys, and stretches are added in order,
    after the sink: so they depend on positions alone. LONG: there may be several, one after the
    other. SPLIT: programs take turns; of each stretch, of at most `splits`, `out` has the weighted
    values in float32, and `sums` the maximum, base 2, and the denominator, for `merge`, and
    `counts` says how many a row has. Otherwise `out` is the result.

    SINGLE: every sequence has one query. Otherwise sequence s owns the blocks from
    starts[s] // BQ + s on. REUSE: values are the first V1 elements of the keys; VS is the distance
    between values in `v_cache`. WAVES: add `contracts.Waves` to the scores.
    """
    HB: tl.constexpr = (G + GB - 1) // GB
    pid = tl.program_id(0)
    head = tl.program_id(1) // HB
    if SINGLE:
        seq = pid
        begin = pid
        count = 1
        first = 0
    else:
        left = 0
        right = num_seqs
        while left < right:
            middle = (left + right) // 2
            if tl.load(starts + middle) // BQ + middle <= pid:
                left = middle + 1
            else:
                right = middle
        seq = left - 1
        begin = tl.load(starts + seq)
        count = tl.load(starts + seq + 1) - begin
        first = (pid - begin // BQ - seq) * BQ
    if first >= count:
        return
    context = tl.load(contexts + seq)
    m = tl.arange(0, BM)
    query_M = first + m // GB
    group_M = tl.program_id(1) % HB * GB + m % GB
    h_M = head * G + group_M
    live_M = (m < BQ * GB) & (group_M < G) & (query_M < count)
    before = context - count
    position_M = before + query_M
    row_M = (begin + query_M).to(tl.int64)
    c1 = tl.arange(0, C1)
    at_M = q + row_M * q_t + h_M * q_h
    q_MC = tl.load(at_M[:, None] + c1[None, :], mask=live_M[:, None] & (c1[None, :] < C), other=0.0)
    more_MC = q_MC
    if C2 > 0:
        c2 = C1 + tl.arange(0, C2)
        more_MC = tl.load(
            at_M[:, None] + c2[None, :], mask=live_M[:, None] & (c2[None, :] < C), other=0.0
        )
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(0, before + first - window + 1)
    low = oldest // BN * BN
    high = tl.minimum(context, before + first + BQ)
    heights_M = amplitudes + (row_M * (HEADS * G) + h_M) * num_waves
    best_M = tl.full([BM], -float("inf"), tl.float32)
    total_M = tl.zeros([BM], tl.float32)
    acc_MV = tl.zeros([BM, V1], tl.float32)
    rest_MV = tl.zeros([BM, V2 if V2 > 0 else V1], tl.float32)
    if SINKS and not SPLIT:
        best_M = tl.load(sinks + h_M, mask=live_M, other=0.0).to(tl.float32) * LOG2E
        total_M = tl.full([BM], 1.0, tl.float32)
    if LONG:
        for start in range(low // STRETCH * STRETCH, high, STRETCH):
            other_M, sum_M, part_MV, more_MV = stretch(
                q_MC, more_MC, k_cache, v_cache, k_scales, v_scales, tables + seq * table_s,
                heights_M, used, lines, line_s, num_waves, scale, cap, window, head, live_M,
                position_M, oldest, tl.maximum(low, start), tl.minimum(high, start + STRETCH),
                HEADS, C, C1, C2, V, V1, V2, VS, PAGE, BN, BM, KIND, REUSE, WINDOW, CAP, WAVES,
            )  # fmt: skip
            best_M, keep_M, add_M = shares(best_M, other_M)
            total_M = tl.fma(total_M, keep_M, sum_M * add_M)
            acc_MV = tl.fma(acc_MV, keep_M[:, None], part_MV * add_M[:, None])
            if V2 > 0:
                rest_MV = tl.fma(rest_MV, keep_M[:, None], more_MV * add_M[:, None])
    elif SPLIT:
        parts = tl.cdiv(tl.maximum(0, high - low // STRETCH * STRETCH), STRETCH)
        at_M = row_M * (HEADS * G) + h_M
        if tl.program_id(2) == 0:
            tl.store(counts + at_M, parts, mask=live_M)
        for part in range(tl.program_id(2), parts, tl.num_programs(2)):
            start = (low // STRETCH + part) * STRETCH
            other_M, sum_M, part_MV, more_MV = stretch(
                q_MC, more_MC, k_cache, v_cache, k_scales, v_scales, tables + seq * table_s,
                heights_M, used, lines, line_s, num_waves, scale, cap, window, head, live_M,
                position_M, oldest, tl.maximum(low, start), tl.minimum(high, start + STRETCH),
                HEADS, C, C1, C2, V, V1, V2, VS, PAGE, BN, BM, KIND, REUSE, WINDOW, CAP, WAVES,
            )  # fmt: skip
            to_M = at_M * splits + part
            tl.store(sums + 2 * to_M, other_M, mask=live_M)
            tl.store(sums + 2 * to_M + 1, sum_M, mask=live_M)
            # `merge` reads no part without a denominator.
            put(out, to_M, part_MV, more_MV, live_M & (sum_M > 0), V, V1, V2)
        return
    else:
        other_M, sum_M, part_MV, more_MV = stretch(
            q_MC, more_MC, k_cache, v_cache, k_scales, v_scales, tables + seq * table_s,
            heights_M, used, lines, line_s, num_waves, scale, cap, window, head, live_M,
            position_M, oldest, low, high,
            HEADS, C, C1, C2, V, V1, V2, VS, PAGE, BN, BM, KIND, REUSE, WINDOW, CAP, WAVES,
        )  # fmt: skip
        if SINKS:
            best_M, keep_M, add_M = shares(best_M, other_M)
            total_M = tl.fma(total_M, keep_M, sum_M * add_M)
            acc_MV = part_MV * add_M[:, None]
            rest_MV = more_MV * add_M[:, None]
        else:
            best_M, total_M, acc_MV, rest_MV = other_M, sum_M, part_MV, more_MV
    safe_M = tl.where(total_M > 0, total_M, 1.0)  # a padding row attends to nothing
    acc_MV = acc_MV / safe_M[:, None]
    rest_MV = rest_MV / safe_M[:, None]
    put(out, row_M * (HEADS * G) + h_M, acc_MV, rest_MV, live_M, V, V1, V2)


@triton.jit
def put(out, row_M, x_MV, rest_MV, mask_M, V: tl.constexpr, V1: tl.constexpr, V2: tl.constexpr):
    """Store rows of values, in two parts."""
    v1 = tl.arange(0, V1)
    tl.store(
        out + row_M[:, None] * V + v1[None, :],
        x_MV.to(out.dtype.element_ty),
        mask=mask_M[:, None] & (v1[None, :] < V),
    )
    if V2 > 0:
        v2 = V1 + tl.arange(0, V2)
        tl.store(
            out + row_M[:, None] * V + v2[None, :],
            rest_MV.to(out.dtype.element_ty),
            mask=mask_M[:, None] & (v2[None, :] < V),
        )


@triton.jit
def stretch(
    q_MC, more_MC, k_cache, v_cache, k_scales, v_scales, table,
    heights_M, used, lines, line_s, num_waves, scale, cap, window, head, live_M,
    position_M, oldest, low, high,
    HEADS: tl.constexpr, C: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, V: tl.constexpr,
    V1: tl.constexpr, V2: tl.constexpr, VS: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, KIND: tl.constexpr, REUSE: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, WAVES: tl.constexpr,
):  # fmt: skip
    """Return the maxima, base 2, the denominators and the weighted values, in two parts, of the
    keys from `low`, a multiple of BN, to before `high`."""
    n = tl.arange(0, BN)
    c1 = tl.arange(0, C1)
    best_M = tl.full([BM], -float("inf"), tl.float32)
    total_M = tl.zeros([BM], tl.float32)
    acc_MV = tl.zeros([BM, V1], tl.float32)
    rest_MV = acc_MV
    if V2 > 0:
        rest_MV = tl.zeros([BM, V2], tl.float32)
    for at in range(low, high, BN):
        t_N = at + n
        # What is older than the window may be another sequence's block by now.
        known_N = (t_N >= oldest) & (t_N < high)
        if PAGE % BN == 0:  # the keys of a tile are in one block
            page = tl.load(table + at // PAGE).to(tl.int64)
            line_N = (page * HEADS + head) * PAGE + at % PAGE + n
        else:
            page_N = tl.load(table + t_N // PAGE, mask=known_N, other=0)
            line_N = (page_N.to(tl.int64) * HEADS + head) * PAGE + t_N % PAGE
        k_CN = tl.load(
            k_cache + line_N[None, :] * C + c1[:, None],
            mask=known_N[None, :] & (c1[:, None] < C),
            other=0.0,
        )
        k_CN = elements(k_CN, q_MC, KIND)
        scores_MN = tl.dot(q_MC, k_CN, input_precision="ieee")
        if C2 > 0:
            c2 = C1 + tl.arange(0, C2)
            more_CN = tl.load(
                k_cache + line_N[None, :] * C + c2[:, None],
                mask=known_N[None, :] & (c2[:, None] < C),
                other=0.0,
            )
            more_CN = elements(more_CN, q_MC, KIND)
            scores_MN = tl.dot(more_MC, more_CN, scores_MN, input_precision="ieee")
        if KIND != "auto":
            k_scale_N = tl.load(k_scales + line_N, mask=known_N, other=0.0)
            scores_MN = scores_MN * k_scale_N[None, :]
        if WAVES:
            for w in range(num_waves):
                line = tl.load(used + head * num_waves + w).to(tl.int64)
                wave_N = tl.load(lines + line * line_s + t_N, mask=known_N, other=0.0)
                height_M = tl.load(heights_M + w, mask=live_M, other=0.0)
                scores_MN += height_M[:, None] * wave_N[None, :]
        if CAP:
            x_MN = scores_MN * (scale / cap)
            scores_MN = cap * LOG2E * (1.0 - 2.0 / (1.0 + tl.exp2(x_MN * (2.0 * LOG2E))))
        else:
            scores_MN = scores_MN * (scale * LOG2E)
        seen_MN = known_N[None, :] & (t_N[None, :] <= position_M[:, None])
        if WINDOW:
            seen_MN = seen_MN & (t_N[None, :] > position_M[:, None] - window)
        scores_MN = tl.where(seen_MN, scores_MN, -float("inf"))
        new_M = tl.maximum(best_M, tl.max(scores_MN, 1))
        base_M = tl.where(new_M == -float("inf"), 0.0, new_M)
        p_MN = tl.exp2(scores_MN - base_M[:, None])
        decay_M = tl.exp2(best_M - base_M)
        total_M = total_M * decay_M + tl.sum(p_MN, 1)
        best_M = new_M
        if REUSE:
            if KIND != "auto":
                p_MN = p_MN * k_scale_N[None, :]
            acc_MV = acc_MV * decay_M[:, None]
            acc_MV = tl.dot(p_MN.to(q_MC.dtype), tl.trans(k_CN), acc_MV, input_precision="ieee")
        else:
            d1 = tl.arange(0, V1)
            if KIND != "auto":
                p_MN = p_MN * tl.load(v_scales + line_N, mask=known_N, other=0.0)[None, :]
            p_MN = p_MN.to(q_MC.dtype)
            v_NV = tl.load(
                v_cache + line_N[:, None] * VS + d1[None, :],
                mask=known_N[:, None] & (d1[None, :] < V),
                other=0.0,
            )
            v_NV = elements(v_NV, q_MC, KIND)
            acc_MV = tl.dot(p_MN, v_NV, acc_MV * decay_M[:, None], input_precision="ieee")
            if V2 > 0:
                d2 = V1 + tl.arange(0, V2)
                more_NV = tl.load(
                    v_cache + line_N[:, None] * VS + d2[None, :],
                    mask=known_N[:, None] & (d2[None, :] < V),
                    other=0.0,
                )
                more_NV = elements(more_NV, q_MC, KIND)
                rest_MV = tl.dot(p_MN, more_NV, rest_MV * decay_M[:, None], input_precision="ieee")
    return best_M, total_M, acc_MV, rest_MV


@triton.jit(do_not_specialize=["splits"])
def merge(
    parts, sums, counts, sinks, out, splits,
    H: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, SINKS: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Add the stretches of one query head in order, BS at once. Grid: (queries x query heads,)."""
    row = tl.program_id(0).to(tl.int64)
    s, d = tl.arange(0, BS), tl.arange(0, VP)
    best = -float("inf")
    total = 0.0
    if SINKS:
        best = tl.load(sinks + row % H).to(tl.float32) * LOG2E
        total = 1.0
    acc_V = tl.zeros([VP], tl.float32)
    count = tl.load(counts + row)
    for at in range(0, count, BS):
        at_S = row * splits + at + s
        known_S = at + s < count
        best_S = tl.load(sums + 2 * at_S, mask=known_S, other=-float("inf"))
        sum_S = tl.load(sums + 2 * at_S + 1, mask=known_S, other=0.0)
        x_SV = tl.load(
            parts + at_S[:, None] * V + d[None, :],
            mask=(sum_S > 0)[:, None] & (d[None, :] < V),
            other=0.0,
        )
        for i in tl.static_range(BS):
            one_S = s == i
            best, keep, add = shares(best, tl.max(tl.where(one_S, best_S, -float("inf")), 0))
            total = tl.fma(total, keep, tl.sum(tl.where(one_S, sum_S, 0.0), 0) * add)
            part_V = tl.sum(tl.where(one_S[:, None], x_SV, 0.0), 0)
            acc_V = tl.fma(acc_V, keep, part_V * add)
    result_V = acc_V / tl.where(total > 0, total, 1.0)
    tl.store(out + row * V + d, result_V.to(out.dtype.element_ty), mask=d < V)
