"""Kernels that turn logits into tokens: what `inferno.ops.draws` defines, for rows of different
parameters in the same launches.

No row is sorted. What `top_k`, `top_p` and `min_p` keep is a prefix of the tokens in the order of
their logits, so that a search for the logit where it ends is enough: bisection by several pivots at
once over floats as integers, with the counts or masses above each. This is selection by buckets
(Alabi et al. 2012, "Fast k-selection algorithms for graphics processing units") with sums of masses
beside counts, as in samplers that search for a pivot
(https://flashinfer.ai/2025/03/10/sampling.html). Masses are integers: sums do not depend on how a
row is split, and nothing is approximate.

Four launches, of which the middle two do nothing for rows that take the best token:

1. `best`: the best logit of each span of a row.
2. `measure`: counts and masses of each span above P fixed logits (`fixed`).
3. `gather`: these say above which of them everything is that may be kept. Write it to a list, in
   the order of ids: a few hundred tokens, mostly, but there is room for all. Rows of which all
   tokens may be drawn need no list: the span that has the token finds it.
4. `select`: one program for each row searches the list, for the ends of `top_k` and of `top_p`, and
   for the token.

A row's spans have `parts` blocks of equal size each. How a batch is divided varies with its size:
those numbers are not specialized, so that no size of a batch compiles a kernel.

Suffixes of tiles: D logits of a row, S its spans, P pivots.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def logits(at_D, mask_D, OWN: tl.constexpr):
    """Load logits as float32. What is not a number, and +inf: counts as -inf and the largest finite
    number, or both as +inf if OWN, which makes the row take its best own token."""
    x_D = tl.load(at_D, mask=mask_D, other=-float("inf")).to(tl.float32)
    if OWN:
        return tl.where(x_D == x_D, x_D, float("inf"))
    else:
        x_D = tl.where(x_D == x_D, x_D, -float("inf"))
        return tl.minimum(x_D, 3.4028234663852886e38)


@triton.jit
def probability(x_D, top, temperature):
    """Return probabilities relative to the best token's. Division and exponential are those of
    torch's operators, to the last bit."""
    return libdevice.exp(tl.math.div_rn(x_D - top, temperature))


@triton.jit
def mass(p_D):
    return (p_D * 1099511627776.0).to(tl.int64)


@triton.jit
def share(part, whole):
    """Return floor(whole * part / 2**31), exactly."""
    return part * (whole >> 31) + ((part * (whole & 0x7FFFFFFF)) >> 31)


@triton.jit
def key(x_D):
    """Return integers in the order of the floats, of which -0.0 is 0.0."""
    bits_D = (x_D + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits_D < 0, bits_D ^ 0x7FFFFFFF, bits_D)


@triton.jit
def fixed(top, temperature, P: tl.constexpr):
    """Return the fixed logits of a row, descending: dense at the best one, the last below all."""
    p = tl.arange(0, P)
    part_P = (p + 1).to(tl.float32) / P
    return tl.where(p == P - 1, -float("inf"), top - temperature * (27.73 * part_P * part_P))


@triton.jit
def top_of(tops, row, spans, SP: tl.constexpr):
    s = tl.arange(0, SP)
    return tl.max(tl.load(tops + row * spans + s, mask=s < spans, other=-float("inf")), 0)


@triton.jit(do_not_specialize=["parts", "spans"])
def best(x, own, tops, ids, own_tops, own_ids, width, x_t, own_t, parts, spans,
         OWN: tl.constexpr, PART: tl.constexpr, DB: tl.constexpr):  # fmt: skip
    """Find the best logit of a span and its first token, and of the model's own logits if OWN.
    Grid: (rows, spans)."""
    row, s, span = tl.program_id(0).to(tl.int64), tl.program_id(1), parts * PART
    d = tl.arange(0, DB)
    best_D = tl.full([DB], -float("inf"), tl.float32)
    id_D = tl.zeros([DB], tl.int32)
    if OWN:
        own_best_D, own_id_D = best_D, id_D
    stop = tl.minimum(s * span + span, width)
    for at in range(s * span, stop, DB):
        x_D = logits(x + row * x_t + at + d, at + d < stop, OWN)
        better_D = x_D > best_D
        best_D, id_D = tl.where(better_D, x_D, best_D), tl.where(better_D, at + d, id_D)
        if OWN:
            x_D = logits(own + row * own_t + at + d, at + d < stop, False)
            better_D = x_D > own_best_D
            own_best_D = tl.where(better_D, x_D, own_best_D)
            own_id_D = tl.where(better_D, at + d, own_id_D)
    top = tl.max(best_D, 0)
    tl.store(tops + row * spans + s, top)
    tl.store(ids + row * spans + s, tl.min(tl.where(best_D == top, id_D, width), 0))
    if OWN:
        top = tl.max(own_best_D, 0)
        tl.store(own_tops + row * spans + s, top)
        winner = tl.min(tl.where(own_best_D == top, own_id_D, width), 0)
        tl.store(own_ids + row * spans + s, winner)


@triton.jit
def first_best(tops, ids, row, spans, SP: tl.constexpr):
    """Return the token with the best logit of a row, the lowest id among equals; 0 if all are
    -inf."""
    s = tl.arange(0, SP)
    top_S = tl.load(tops + row * spans + s, mask=s < spans, other=-float("inf"))
    id_S = tl.load(ids + row * spans + s, mask=s < spans, other=2147483647)
    return tl.min(tl.where(top_S == tl.max(top_S, 0), id_S, 2147483647), 0)


@triton.jit(do_not_specialize=["parts", "spans"])
def measure(x, tops, counts, masses, temperatures, min_ps, top_ks, top_ps, uniforms, width, x_t,
            parts, spans, OWN: tl.constexpr, SP: tl.constexpr, P: tl.constexpr,
            DB: tl.constexpr):  # fmt: skip
    """Sum counts and masses of a span above each fixed logit. Grid: (rows, spans)."""
    row, s, span = tl.program_id(0).to(tl.int64), tl.program_id(1), parts * DB
    top = top_of(tops, row, spans, SP)
    if (tl.abs(top) == float("inf")) | (tl.load(uniforms + row) < 0):
        return
    temperature, min_p = tl.load(temperatures + row), tl.load(min_ps + row)
    d, p = tl.arange(0, DB), tl.arange(0, P)
    stop = tl.minimum(s * span + span, width)
    to_P = (row * spans + s) * P + p
    if (tl.load(top_ks + row) >= width) & (tl.load(top_ps + row) >= 2147483648):
        sum_D = tl.zeros([DB], tl.int64)
        for at in range(s * span, stop, DB):
            x_D = logits(x + row * x_t + at + d, at + d < stop, OWN)
            p_D = probability(x_D, top, temperature)
            sum_D += tl.where(p_D < min_p, 0, mass(p_D))
        tl.store(masses + to_P, tl.sum(sum_D, 0) + tl.zeros([P], tl.int64))
        return
    least_P = fixed(top, temperature, P)
    count_PD = tl.zeros([P, DB], tl.int32)
    mass_PD = tl.zeros([P, DB], tl.int64)
    d_1D = d[None, :]
    for at in range(s * span, stop, DB):
        x_1D = logits(x + row * x_t + at + d_1D, at + d_1D < stop, OWN)
        mass_1D = mass(probability(x_1D, top, temperature))
        above_PD = (x_1D >= least_P[:, None]) & (mass_1D > 0)
        count_PD += above_PD.to(tl.int32)
        mass_PD += tl.where(above_PD, mass_1D, 0)
    tl.store(counts + to_P, tl.sum(count_PD, 1))
    tl.store(masses + to_P, tl.sum(mass_PD, 1))


@triton.jit(do_not_specialize=["parts", "spans"])
def gather(x, tops, counts, masses, listed, listed_ids, totals, out, temperatures, min_ps, top_ks,
           top_ps, uniforms, width, x_t, parts, spans, OWN: tl.constexpr, SP: tl.constexpr,
           P: tl.constexpr, DB: tl.constexpr):  # fmt: skip
    """Write the tokens of a span that may be kept to the row's list; or, if all of the row may be
    drawn, find the token if it is in this span. Grid: (rows, spans)."""
    row, s, span = tl.program_id(0).to(tl.int64), tl.program_id(1), parts * DB
    top, uniform = top_of(tops, row, spans, SP), tl.load(uniforms + row)
    if (tl.abs(top) == float("inf")) | (uniform < 0):
        return
    temperature, min_p = tl.load(temperatures + row), tl.load(min_ps + row)
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    d, p, each = tl.arange(0, DB), tl.arange(0, P), tl.arange(0, SP)
    stop = tl.minimum(s * span + span, width)
    from_S = (row * spans + each) * P
    mass_S = tl.load(masses + from_S + P - 1, mask=each < spans, other=0)
    total = tl.sum(mass_S, 0)
    if (top_k >= width) & (top_p >= 2147483648):
        target = share(uniform, total)
        before = tl.sum(tl.where(each < s, mass_S, 0), 0)
        span_mass = tl.sum(tl.where(each == s, mass_S, 0), 0)
        if (before > target) | (before + span_mass <= target):
            return
        winner = width
        for at in range(s * span, stop, DB):
            p_D = probability(logits(x + row * x_t + at + d, at + d < stop, OWN), top, temperature)
            mass_D = tl.where(p_D < min_p, 0, mass(p_D))
            beyond_D = before + tl.cumsum(mass_D, 0) > target
            winner = tl.minimum(winner, tl.min(tl.where(beyond_D, at + d, width), 0))
            before += tl.sum(mass_D, 0)
        tl.store(out + row, winner.to(tl.int64))
        return
    mask_SP = (each < spans)[:, None] & (p >= 0)[None, :]
    count_SP = tl.load(counts + from_S[:, None] + p[None, :], mask=mask_SP, other=0)
    mass_SP = tl.load(masses + from_S[:, None] + p[None, :], mask=mask_SP, other=0)
    count_P, mass_P = tl.sum(count_SP, 0), tl.sum(mass_SP, 0)
    count = tl.max(count_P, 0)
    enough = tl.maximum(share(top_p, total), 1)
    reached_P = tl.where(top_k < count, count_P.to(tl.int64) >= top_k, mass_P >= enough)
    pivot = P - tl.sum(reached_P.to(tl.int32), 0)
    least = tl.sum(tl.where(p == pivot, fixed(top, temperature, P), 0.0), 0)
    count_S = tl.sum(tl.where((p == pivot)[None, :], count_SP, 0), 1)
    if s == 0:
        tl.store(totals + row * 3, tl.sum(count_S, 0).to(tl.int64))
        tl.store(totals + row * 3 + 1, count.to(tl.int64))
        tl.store(totals + row * 3 + 2, total)
    first = tl.sum(tl.where(each < s, count_S, 0), 0)
    if tl.sum(tl.where(each == s, count_S, 0), 0) == 0:
        return
    to = row * width
    for at in range(s * span, stop, DB):
        x_D = logits(x + row * x_t + at + d, at + d < stop, OWN)
        kept_D = (x_D >= least) & (mass(probability(x_D, top, temperature)) > 0)
        one_D = kept_D.to(tl.int32)
        to_D = to + first + tl.cumsum(one_D, 0) - one_D
        tl.store(listed + to_D, x_D, mask=kept_D)
        tl.store(listed_ids + to_D, at + d, mask=kept_D)
        first += tl.sum(one_D, 0)


@triton.jit
def find(listed, length, top, temperature, low, high, target, COUNT: tl.constexpr, P: tl.constexpr,
         DB: tl.constexpr):  # fmt: skip
    """Return the key of the first logit at which the cumulative count or mass exceeds the target,
    between two keys of which the lower one's does."""
    d_1D, p = tl.arange(0, DB)[None, :], tl.arange(0, P)
    while low < high:
        step = (high - low) // P + 1
        pivot_P = low + step * p
        sum_PD = tl.zeros([P, DB], tl.int64)
        for at in range(0, length, DB):
            known_1D = at + d_1D < length
            x_1D = tl.load(listed + at + d_1D, mask=known_1D, other=-float("inf"))
            above_PD = (key(x_1D).to(tl.int64) >= pivot_P[:, None]) & known_1D
            if COUNT:
                sum_PD += above_PD.to(tl.int64)
            else:
                sum_PD += tl.where(above_PD, mass(probability(x_1D, top, temperature)), 0)
        n = tl.sum((tl.sum(sum_PD, 1) > target).to(tl.int64), 0)
        high = tl.minimum(low + n * step - 1, high)
        low += (n - 1) * step
    return low


@triton.jit
def place(listed, length, top, temperature, found, DB: tl.constexpr):
    """Return the count and the mass of the tokens with a greater logit, and the mass of one with
    this one."""
    d = tl.arange(0, DB)
    count_D, mass_D = tl.zeros([DB], tl.int64), tl.zeros([DB], tl.int64)
    each_D = tl.zeros([DB], tl.int64)
    for at in range(0, length, DB):
        x_D = tl.load(listed + at + d, mask=at + d < length, other=-float("inf"))
        own_D = mass(probability(x_D, top, temperature))
        key_D = key(x_D).to(tl.int64)
        count_D += ((key_D > found) & (at + d < length)).to(tl.int64)
        mass_D += tl.where(key_D > found, own_D, 0)
        each_D = tl.maximum(each_D, tl.where(key_D == found, own_D, 0))
    return tl.sum(count_D, 0), tl.sum(mass_D, 0), tl.maximum(tl.max(each_D, 0), 1)


@triton.jit(do_not_specialize=["spans"])
def select(tops, ids, own_tops, own_ids, listed, listed_ids, totals, out, temperatures, min_ps,
           top_ks, top_ps, uniforms, width, spans, DRAW: tl.constexpr, SP: tl.constexpr,
           P: tl.constexpr, DB: tl.constexpr):  # fmt: skip
    """Draw a row's token from its list; or take the best one. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    top = top_of(tops, row, spans, SP)
    uniform = tl.load(uniforms + row) if DRAW else tl.full([], -1, tl.int64)
    if tl.abs(top) == float("inf"):
        tl.store(out + row, first_best(own_tops, own_ids, row, spans, SP).to(tl.int64))
        return
    if uniform < 0:
        tl.store(out + row, first_best(tops, ids, row, spans, SP).to(tl.int64))
        return
    if DRAW:
        top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
        if (top_k >= width) & (top_p >= 2147483648):
            return
        temperature, min_p = tl.load(temperatures + row), tl.load(min_ps + row)
        length, count = tl.load(totals + row * 3), tl.load(totals + row * 3 + 1)
        total = tl.load(totals + row * 3 + 2)
        listed += row * width
        listed_ids += row * width
        d = tl.arange(0, DB)
        lowest_D = tl.full([DB], float("inf"), tl.float32)
        likely_D = tl.zeros([DB], tl.int64)
        for at in range(0, length, DB):
            x_D = tl.load(listed + at + d, mask=at + d < length, other=-float("inf"))
            lowest_D = tl.minimum(lowest_D, tl.where(at + d < length, x_D, float("inf")))
            p_D = probability(x_D, top, temperature)
            likely_D += tl.where(p_D < min_p, 0, mass(p_D))
        low, high = key(tl.min(lowest_D, 0)).to(tl.int64), key(top).to(tl.int64)
        if top_k < count:
            pivot = find(listed, length, top, temperature, low, high, top_k - 1, True, P, DB)
            before, above, each = place(listed, length, top, temperature, pivot, DB)
            total = above + (top_k - before) * each
        nucleus = total
        enough = tl.maximum(share(top_p, total), 1)
        if enough < total:
            pivot = find(listed, length, top, temperature, low, high, enough - 1, False, P, DB)
            before, above, each = place(listed, length, top, temperature, pivot, DB)
            nucleus = tl.minimum(above + ((enough - 1 - above) // each + 1) * each, total)
        target = share(uniform, tl.minimum(nucleus, tl.sum(likely_D, 0)))
        pivot = find(listed, length, top, temperature, low, high, target, False, P, DB)
        before, above, each = place(listed, length, top, temperature, pivot, DB)
        rank = (target - above) // each  # among the tokens with this logit
        token = width
        seen = rank * 0
        for at in range(0, length, DB):
            x_D = tl.load(listed + at + d, mask=at + d < length, other=-float("inf"))
            id_D = tl.load(listed_ids + at + d, mask=at + d < length, other=0)
            equal_D = ((key(x_D).to(tl.int64) == pivot) & (at + d < length)).to(tl.int64)
            past_D = (seen + tl.cumsum(equal_D, 0) > rank) & (equal_D > 0)
            token = tl.minimum(token, tl.min(tl.where(past_D, id_D, width), 0))
            seen += tl.sum(equal_D, 0)
        tl.store(out + row, token.to(tl.int64))


@triton.jit
def adjust(x, out, rows, recent, generated, repetition, frequency, presence, words, width, x_t,
           words_t, RECENT: tl.constexpr, GENERATED: tl.constexpr, WORDS: tl.constexpr,
           DB: tl.constexpr):  # fmt: skip
    """Apply penalties and a mask of bits. Grid: (rows, blocks of DB logits)."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * DB + tl.arange(0, DB)
    mask_D = d < width
    x_D = logits(x + row * x_t + d, mask_D, False)
    if RECENT:
        factor = tl.load(repetition + row)
        count_D = tl.load(recent + tl.load(rows + row) * width + d, mask=mask_D, other=0)
        penalised_D = tl.where(x_D > 0, tl.math.div_rn(x_D, factor), x_D * factor)
        x_D = tl.where(count_D > 0, penalised_D, x_D)
    if GENERATED:
        count_D = tl.load(generated + tl.load(rows + row) * width + d, mask=mask_D, other=0)
        once_D = tl.where(count_D > 0, tl.load(presence + row), 0.0)
        x_D = x_D - (count_D.to(tl.float32) * tl.load(frequency + row) + once_D)
    if WORDS:
        known_D = mask_D & (d // 32 < words_t)
        word_D = tl.load(words + row * words_t + d // 32, mask=known_D, other=0)
        x_D = tl.where(((word_D >> (d % 32)) & 1) != 0, x_D, -float("inf"))
    tl.store(out + row * width + d, x_D, mask=mask_D)


@triton.jit(do_not_specialize=["count"])
def bias(x, at, ids, values, count, width, BN: tl.constexpr):
    """Add biases to single logits. Grid: (blocks of BN biases,)."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    mask_N = n < count
    row_N, id_N = tl.load(at + n, mask=mask_N, other=0), tl.load(ids + n, mask=mask_N, other=0)
    value_N = tl.load(values + n, mask=mask_N, other=0.0)
    to_N = x + row_N * width + id_N
    x_N = tl.load(to_N, mask=mask_N, other=0.0) + value_N
    excluded_N = value_N == -float("inf")
    tl.store(to_N, tl.where(excluded_N, -float("inf"), x_N), mask=mask_N)
