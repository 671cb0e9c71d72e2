"""Kernels of paged attention: storing keys and values, attention of packed query heads, and merging
the results of split contexts.

Whatever varies from step to step is read from device memory, and the grid follows from the step's
shape alone: a captured launch is right for every step of that shape.

The cache is [block][key/value head][token of the block][element]. Elements are of the compute
dtype, or of 8 bits with a float32 scale for each token and head: see `codes`.

Suffixes of tiles: M rows (queries x query heads of one key/value head), N keys, C elements of a
key, V of a value, T tokens of a step, S splits.

A head is computed in `parts`: its first C1 or V1 elements, and the C2 or V2 others, if any. With
WORDS, for single tokens, elements of 8 bits are loaded four at once, as words of 32 bits, and
become float16 in the registers that multiply them: the parts of a key are its even and its odd
elements, those of a value have every fourth. Keys and values are the left operands then: matrix
instructions have 16 rows, and there are often fewer queries.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc"

import triton
import triton.language as tl

from inferno_triton.codes import elements, halves, of_keys, of_values, quantized
from inferno_triton.parts import added, columns, put, zeros

LOG2E = tl.constexpr(1.4426950408889634)


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
    WORDS: tl.constexpr, REUSE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    SINKS: tl.constexpr, STRETCH: tl.constexpr, LONG: tl.constexpr, SPLIT: tl.constexpr,
    SINGLE: tl.constexpr, WAVES: tl.constexpr,
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
    at_M = q + row_M * q_t + h_M * q_h
    q_MC = ()
    for i in tl.static_range(2 if WORDS or C2 > 0 else 1):
        c = columns(i, C1, C2, 2 if WORDS else 1)
        mask_MC = live_M[:, None] & (c[None, :] < C)
        q_MC = q_MC + (tl.load(at_M[:, None] + c[None, :], mask=mask_MC, other=0.0),)
    size_M = tl.full([BM], 1.0, tl.float32)
    if WORDS:
        even_MC, odd_MC, size_M = halves(q_MC[0], q_MC[1])
        q_MC = (even_MC, odd_MC)
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(0, before + first - window + 1)
    low = oldest // BN * BN
    high = tl.minimum(context, before + first + BQ)
    heights_M = amplitudes + (row_M * (HEADS * G) + h_M) * num_waves
    best_M = tl.full([BM], -float("inf"), tl.float32)
    total_M = tl.zeros([BM], tl.float32)
    acc_MV = zeros(BM, V1, V2, WORDS)
    if SINKS and not SPLIT:
        best_M = tl.load(sinks + h_M, mask=live_M, other=0.0).to(tl.float32) * LOG2E
        total_M = tl.full([BM], 1.0, tl.float32)
    if LONG:
        for start in range(low // STRETCH * STRETCH, high, STRETCH):
            other_M, sum_M, part_MV = stretch(
                q_MC, size_M, k_cache, v_cache, k_scales, v_scales, tables + seq * table_s,
                heights_M, used, lines, line_s, num_waves, scale, cap, window, head, live_M,
                position_M, oldest, tl.maximum(low, start), tl.minimum(high, start + STRETCH),
                HEADS, C, C1, C2, V, V1, V2, VS, PAGE, BN, BM, KIND, WORDS, REUSE, WINDOW,
                CAP, WAVES,
            )  # fmt: skip
            best_M, keep_M, add_M = shares(best_M, other_M)
            total_M = tl.fma(total_M, keep_M, sum_M * add_M)
            acc_MV = added(acc_MV, keep_M, part_MV, add_M)
    elif SPLIT:
        parts = tl.cdiv(tl.maximum(0, high - low // STRETCH * STRETCH), STRETCH)
        at_M = row_M * (HEADS * G) + h_M
        if tl.program_id(2) == 0:
            tl.store(counts + at_M, parts, mask=live_M)
        for part in range(tl.program_id(2), parts, tl.num_programs(2)):
            start = (low // STRETCH + part) * STRETCH
            other_M, sum_M, part_MV = stretch(
                q_MC, size_M, k_cache, v_cache, k_scales, v_scales, tables + seq * table_s,
                heights_M, used, lines, line_s, num_waves, scale, cap, window, head, live_M,
                position_M, oldest, tl.maximum(low, start), tl.minimum(high, start + STRETCH),
                HEADS, C, C1, C2, V, V1, V2, VS, PAGE, BN, BM, KIND, WORDS, REUSE, WINDOW,
                CAP, WAVES,
            )  # fmt: skip
            to_M = at_M * splits + part
            tl.store(sums + 2 * to_M, other_M, mask=live_M)
            tl.store(sums + 2 * to_M + 1, sum_M, mask=live_M)
            # `merge` reads no part without a denominator.
            put(out, to_M, part_MV, live_M & (sum_M > 0), V, V1, V2, WORDS)
        return
    else:
        other_M, sum_M, part_MV = stretch(
            q_MC, size_M, k_cache, v_cache, k_scales, v_scales, tables + seq * table_s,
            heights_M, used, lines, line_s, num_waves, scale, cap, window, head, live_M,
            position_M, oldest, low, high,
            HEADS, C, C1, C2, V, V1, V2, VS, PAGE, BN, BM, KIND, WORDS, REUSE, WINDOW,
                CAP, WAVES,
        )  # fmt: skip
        if SINKS:
            best_M, keep_M, add_M = shares(best_M, other_M)
            total_M = tl.fma(total_M, keep_M, sum_M * add_M)
            acc_MV = added(acc_MV, keep_M, part_MV, add_M)
        else:
            total_M, acc_MV = sum_M, part_MV
    total_M = tl.where(total_M > 0, total_M, 1.0)  # a padding row attends to nothing
    result_MV = ()
    for i in tl.static_range(len(acc_MV)):
        result_MV = result_MV + (acc_MV[i] / total_M[:, None],)
    put(out, row_M * (HEADS * G) + h_M, result_MV, live_M, V, V1, V2, WORDS)


@triton.jit
def stretch(
    q_MC, size_M, k_cache, v_cache, k_scales, v_scales, table,
    heights_M, used, lines, line_s, num_waves, scale, cap, window, head, live_M,
    position_M, oldest, low, high,
    HEADS: tl.constexpr, C: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, V: tl.constexpr,
    V1: tl.constexpr, V2: tl.constexpr, VS: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, KIND: tl.constexpr, WORDS: tl.constexpr, REUSE: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, WAVES: tl.constexpr,
):  # fmt: skip
    """Return the maxima, base 2, the denominators and the weighted values of the keys from `low`, a
    multiple of BN, to before `high`. Queries are relative to `size_M`."""
    n = tl.arange(0, BN)
    SHRUNK: tl.constexpr = 256.0 if WORDS and KIND != "int8" else 1.0
    best_M = tl.full([BM], -float("inf"), tl.float32)
    total_M = tl.zeros([BM], tl.float32)
    if WORDS:
        x_VM = tl.zeros([V // 4, BM], tl.float32)
        acc_MV = (x_VM, x_VM, x_VM, x_VM)
    else:
        acc_MV = zeros(BM, V1, V2, WORDS)
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
        if WORDS:
            c = tl.arange(0, C // 4)
            k_NC = tl.load(
                k_cache + line_N[:, None] * (C // 4) + c[None, :], mask=known_N[:, None], other=0
            )
            scores_NM = tl.dot(of_keys(k_NC, 0, KIND), tl.trans(q_MC[0]))
            scores_NM = tl.dot(of_keys(k_NC, 1, KIND), tl.trans(q_MC[1]), scores_NM)
            scores_MN = tl.trans(scores_NM)
        else:
            scores_MN = tl.zeros([BM, BN], tl.float32)
            for i in tl.static_range(len(q_MC)):
                c = columns(i, C1, C2, 1)
                k_CN = tl.load(
                    k_cache + line_N[None, :] * C + c[:, None],
                    mask=known_N[None, :] & (c[:, None] < C),
                    other=0.0,
                )
                k_CN = elements(k_CN, q_MC[i], KIND)
                if i == 0:
                    first_CN = k_CN
                scores_MN = tl.dot(q_MC[i], k_CN, scores_MN, input_precision="ieee")
        if KIND != "auto":
            k_scale_N = tl.load(k_scales + line_N, mask=known_N, other=0.0) * SHRUNK
            scores_MN = scores_MN * k_scale_N[None, :] * size_M[:, None]
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
        sum_MV = ()
        if REUSE:
            if KIND != "auto":
                p_MN = p_MN * k_scale_N[None, :]
            p_MN = p_MN.to(q_MC[0].dtype)
            x_MV = acc_MV[0] * decay_M[:, None]
            sum_MV = (tl.dot(p_MN, tl.trans(first_CN), x_MV, input_precision="ieee"),)
        elif WORDS:
            # Relative to the largest scale, as float16 has a small range. Every known key is seen.
            scale_N = tl.load(v_scales + line_N, mask=known_N, other=0.0)
            top = tl.max(scale_N, 0)
            p_MN = (p_MN * (scale_N / tl.where(top > 0, top, 1.0))[None, :]).to(tl.float16)
            p_NM = tl.trans(p_MN)
            v = tl.arange(0, V // 4)
            v_VN = tl.load(
                v_cache + line_N[None, :] * (V // 4) + v[:, None], mask=known_N[None, :], other=0
            )
            for i in tl.static_range(4):
                x_VM = tl.dot(of_values(v_VN, i, KIND), p_NM) * (top * SHRUNK)
                sum_MV = sum_MV + (tl.fma(acc_MV[i], decay_M[None, :], x_VM),)
        else:
            if KIND != "auto":
                p_MN = p_MN * tl.load(v_scales + line_N, mask=known_N, other=0.0)[None, :]
            p_MN = p_MN.to(q_MC[0].dtype)
            for i in tl.static_range(len(acc_MV)):
                v = columns(i, V1, V2, 1)
                v_NV = tl.load(
                    v_cache + line_N[:, None] * VS + v[None, :],
                    mask=known_N[:, None] & (v[None, :] < V),
                    other=0.0,
                )
                v_NV = elements(v_NV, q_MC[0], KIND)
                x_MV = acc_MV[i] * decay_M[:, None]
                sum_MV = sum_MV + (tl.dot(p_MN, v_NV, x_MV, input_precision="ieee"),)
        acc_MV = sum_MV
    if WORDS:
        a, b, c, d = acc_MV
        acc_MV = (tl.trans(a), tl.trans(b), tl.trans(c), tl.trans(d))
    return best_M, total_M, acc_MV


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
