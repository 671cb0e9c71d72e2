"""Kernels of products with packed matrices, which are unpacked on the way to the arithmetic units.

A matrix is in planes (`planes.Planes`): rows of blocks of 256 columns, each of 32 elements. An
element has 8 codes: in its bits B · j to B · j + B - 1, element e has that of column 32 · j + e. So
one load of 16 bytes gives codes for several pieces of 32 columns, and a piece needs no exchange of
values between threads. One plane has the low bits of the codes, another the bits above, if any.

A value is (code - OFFSET - zero) · scale, or (code - OFFSET) · scale - minimum: MINS says which of
"", "zeros" and "minima" there are. Scales are in words of 64 bits, (words, rows): KIND says what
numbers a word has: "single" (two of float32), "half" (four of float16), "byte" (eight integers,
each to be multiplied by the block's step, which is float16) or "exponent" (eight powers of two,
biased by 127).

Suffixes of tiles: O rows of the matrix, E elements of a block, T tokens.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from inferno_triton.mixture import rows_of


@triton.jit
def integer(code, OFFSET: tl.constexpr):
    """Return integers below 2**23, less OFFSET, in float32. They are the low bits of 2**23 plus
    them: that is cheaper than a conversion."""
    return (code | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + OFFSET)


@triton.jit
def number(words, n: tl.constexpr, step, KIND: tl.constexpr):
    """Return number n of each word."""
    if KIND == "single":
        return (words >> (32 * n)).to(tl.int32).to(tl.float32, bitcast=True)
    elif KIND == "half":
        half = ((words >> (16 * n)) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
        return half.to(tl.float32)
    elif KIND == "byte":
        return integer(((words >> (8 * n)) & 255).to(tl.int32) ^ 128, 128) * step
    else:
        bits = ((words >> (8 * n)) & 255).to(tl.int32)
        # 2**-127 is subnormal.
        return tl.where(bits == 0, 0x400000, bits << 23).to(tl.float32, bitcast=True)


@triton.jit
def number_of(words, column: tl.constexpr, step, GROUP: tl.constexpr, KIND: tl.constexpr):
    """Return the number of a block's column, (rows, 1), from the words that have it."""
    EACH: tl.constexpr = 2 if KIND == "single" else 4 if KIND == "half" else 8
    return number(words, column // GROUP % EACH, step, KIND)[:, None]


@triton.jit
def numbers(words, piece: tl.constexpr, step, GROUP: tl.constexpr, KIND: tl.constexpr):
    """Return the numbers of a piece's columns, (rows, 1) or (rows, E), from the words that have
    them."""
    first = number_of(words, piece * 32, step, GROUP, KIND)
    if GROUP < 32:
        e = tl.arange(0, 32)
        second = number_of(words, piece * 32 + GROUP, step, GROUP, KIND)
        return tl.where(e[None, :] < GROUP, first, second)
    else:
        return first


@triton.jit
def codes(low, high, table, piece: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
          OFFSET: tl.constexpr, TABLE: tl.constexpr):  # fmt: skip
    """Return the codes of a piece less OFFSET, or the values that they have in a TABLE, in
    float32."""
    code = ((low >> (LOW * piece)) & ((1 << LOW) - 1)).to(tl.int32)
    if HIGH > 0:
        code = code | (((high >> (HIGH * piece)) & ((1 << HIGH) - 1)).to(tl.int32) << LOW)
    if TABLE == "e2m1":
        # Its exponent and mantissa are bits of float16: subnormal ones, too.
        half = (((code & 8) << 12) | ((code & 7) << 9)).to(tl.int16).to(tl.float16, bitcast=True)
        return half.to(tl.float32) * 16384.0
    elif TABLE == "values":
        return tl.load(table + code)
    else:
        return integer(code, OFFSET)


@triton.jit
def weights(low, high, table, scale_words, mins_words, step, least, piece: tl.constexpr,
            LOW: tl.constexpr, HIGH: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
            OFFSET: tl.constexpr, MINS: tl.constexpr, TABLE: tl.constexpr):  # fmt: skip
    """Return the values of a piece, (rows, E), in float32."""
    value_OE = codes(low, high, table, piece, LOW, HIGH, OFFSET, TABLE)
    scale = numbers(scale_words, piece, step, GROUP, KIND)
    if MINS == "zeros":
        return (value_OE - numbers(mins_words, piece, least, GROUP, KIND)) * scale
    elif MINS == "minima":
        return value_OE * scale - numbers(mins_words, piece, least, GROUP, KIND)
    else:
        return value_OE * scale


@triton.jit
def elements(
    low, high, steps, least, row_O, mask_O, block, blocks, rows,
    HIGH: tl.constexpr, KIND: tl.constexpr, MINS: tl.constexpr,
    FIRST: tl.constexpr = 0, SPAN: tl.constexpr = 32,
):  # fmt: skip
    """Load SPAN elements of a block from FIRST on, its steps and those of its minima."""
    line_O = row_O.to(tl.int64) * (blocks * 32)
    line_OE = line_O[:, None] + (block * 32 + FIRST + tl.arange(0, SPAN))[None, :]
    low_OE = tl.load(low + line_OE, mask=mask_O[:, None], other=0)
    high_OE, step_O, least_O = low_OE, row_O, row_O  # if there are none
    if HIGH > 0:
        high_OE = tl.load(high + line_OE, mask=mask_O[:, None], other=0)
    if KIND == "byte":
        at_O = block * rows + row_O
        step_O = tl.load(steps + at_O, mask=mask_O, other=0.0).to(tl.float32)
        if MINS == "minima":
            least_O = tl.load(least + at_O, mask=mask_O, other=0.0).to(tl.float32)
    return low_OE, high_OE, step_O, least_O


@triton.jit
def words(scales, mins, row_O, mask_O, index, rows, MINS: tl.constexpr):
    """Load words of scales and those of zero points or minima."""
    at_O = index.to(tl.int64) * rows + row_O
    scale_O = tl.load(scales + at_O, mask=mask_O, other=0)
    mins_O = scale_O
    if MINS != "":
        mins_O = tl.load(mins + at_O, mask=mask_O, other=0)
    return scale_O, mins_O


@triton.jit
def pairs(plane, BITS: tl.constexpr):
    """Return a plane's elements as words in which codes j and j + 4 are 16 bits apart."""
    if BITS == 4:
        return plane
    elif BITS == 2:
        wide = plane.to(tl.int32) & 0xFFFF
        return wide | (wide << 8)
    else:
        wide = plane.to(tl.int32) & 0xFF
        return wide | (wide << 12)


@triton.jit
def operand(low, high, table, piece: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
            OFFSET: tl.constexpr, TABLE: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """Return the codes of a piece in TYPE, exactly: less OFFSET, as `codes`; or if they have few
    bits, plus 128 in bfloat16 and 64 in float16, whose mantissas then are the codes: two of them in
    each operation, and no conversion."""
    if LOW == 8 or TABLE != "":
        return codes(low, high, table, piece, LOW, HIGH, OFFSET, TABLE).to(TYPE)
    else:
        two = (pairs(low, LOW) >> (LOW * (piece % 4))) & (((1 << LOW) - 1) * 0x10001)
        if HIGH > 0:
            above = (pairs(high, HIGH) >> (HIGH * (piece % 4))) & (((1 << HIGH) - 1) * 0x10001)
            two = two | (above << LOW)
        if TYPE == tl.bfloat16:
            two = two | 0x43004300
        else:
            two = (two << 4) | 0x54005400
        return (two if piece < 4 else two >> 16).to(tl.int16).to(TYPE, bitcast=True)


@triton.jit(do_not_specialize=["tokens", "splits"])
def few(
    x, low, high, scales, mins, steps, least, table, starts, out, tokens, outputs, columns, blocks,
    rows, x_t, splits,
    LOW: tl.constexpr, HIGH: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
    OFFSET: tl.constexpr, MINS: tl.constexpr, TABLE: tl.constexpr, EXPERTS: tl.constexpr,
    EP: tl.constexpr, BO: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Multiply few rows of x: as `many`, but scales are applied to the products with the codes,
    which are fewer than the codes. So no value of the matrix is rounded. What is to be subtracted
    from a code or a value is multiplied by the sum of x."""
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    split = tl.program_id(2)
    row_O, first, stop = rows_of(starts, o, tokens, outputs, EXPERTS, EP, BT)
    if EXPERTS > 0:
        if first >= stop:
            return
    SPAN: tl.constexpr = GROUP if GROUP < 32 else 32
    t, e = (first + tl.arange(0, BT)).to(tl.int64), tl.arange(0, SPAN)
    mask_O, mask_T = o < outputs, t < stop
    EACH: tl.constexpr = (2 if KIND == "single" else 4 if KIND == "half" else 8) * GROUP // 32
    TYPE: tl.constexpr = x.dtype.element_ty
    BIASED: tl.constexpr = LOW < 8 and TABLE == ""
    BIAS: tl.constexpr = OFFSET + (128 if TYPE == tl.bfloat16 else 64)
    each = tl.cdiv(blocks, splits)
    acc_OT = tl.zeros([BO, BT], tl.float32)
    ones_OE = tl.full([BO, SPAN], 1.0, tl.float32).to(TYPE)
    for block in range(split * each, tl.minimum(split * each + each, blocks)):
        for half in tl.static_range(32 // SPAN):
            low_OE, high_OE, step_O, least_O = elements(
                low, high, steps, least, row_O, mask_O, block, blocks, rows, HIGH, KIND, MINS,
                half * SPAN, SPAN,
            )  # fmt: skip
            for piece in tl.static_range(8):
                if piece % EACH == 0:
                    index = block * (8 // EACH) + piece // EACH
                    scale_O, mins_O = words(scales, mins, row_O, mask_O, index, rows, MINS)
                column = block * 256 + piece * 32 + half * SPAN + e
                x_ET = tl.load(
                    x + t[None, :] * x_t + column[:, None],
                    mask=mask_T[None, :] & (column < columns)[:, None],
                    other=0.0,
                )
                code_OE = operand(low_OE, high_OE, table, piece, LOW, HIGH, OFFSET, TABLE, TYPE)
                part_OT = tl.dot(code_OE, x_ET)
                if BIASED or MINS != "":
                    sum_OT = tl.dot(ones_OE, x_ET)
                if BIASED:
                    part_OT -= BIAS * sum_OT
                scale_O1 = number_of(scale_O, piece * 32 + half * SPAN, step_O, GROUP, KIND)
                if MINS != "":
                    least_O1 = number_of(mins_O, piece * 32 + half * SPAN, least_O, GROUP, KIND)
                if MINS == "zeros":
                    part_OT -= least_O1 * sum_OT
                acc_OT += scale_O1 * part_OT
                if MINS == "minima":
                    acc_OT -= least_O1 * sum_OT
    to_OT = (split * tokens + t[None, :]) * outputs + o[:, None]
    tl.store(out + to_OT, acc_OT, mask=mask_O[:, None] & mask_T[None, :])


@triton.jit(do_not_specialize=["tokens", "splits"])
def many(
    x, low, high, scales, mins, steps, least, table, starts, out, tokens, outputs, columns, blocks,
    rows, x_t, splits,
    LOW: tl.constexpr, HIGH: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
    OFFSET: tl.constexpr, MINS: tl.constexpr, TABLE: tl.constexpr, EXPERTS: tl.constexpr,
    EP: tl.constexpr, BO: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Multiply blocks of BT rows of x by values that are rounded to its type. The matrix is the
    left operand: instructions have 64 rows or more, and there are often fewer tokens. Grid: (blocks
    of outputs, blocks of rows of x, splits of the columns). `out` has a float32 result for each
    split. `rows` is the number of rows of all matrices, `outputs` of one. EXPERTS: rows of x are
    sorted by expert."""
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    split = tl.program_id(2)
    row_O, first, stop = rows_of(starts, o, tokens, outputs, EXPERTS, EP, BT)
    if EXPERTS > 0:
        if first >= stop:
            return
    t = (first + tl.arange(0, BT)).to(tl.int64)
    e = tl.arange(0, 32)
    mask_O, mask_T = o < outputs, t < stop
    EACH: tl.constexpr = (2 if KIND == "single" else 4 if KIND == "half" else 8) * GROUP // 32
    WORDS: tl.constexpr = 8 // EACH
    each = tl.cdiv(blocks, splits)
    acc_OT = tl.zeros([BO, BT], tl.float32)
    for block in range(split * each, tl.minimum(split * each + each, blocks)):
        low_OE, high_OE, step_O, least_O = elements(
            low, high, steps, least, row_O, mask_O, block, blocks, rows, HIGH, KIND, MINS
        )
        for piece in tl.static_range(8):
            if piece % EACH == 0:
                index = block * WORDS + piece // EACH
                scale_O, mins_O = words(scales, mins, row_O, mask_O, index, rows, MINS)
            w_OE = weights(
                low_OE, high_OE, table, scale_O, mins_O, step_O, least_O, piece,
                LOW, HIGH, GROUP, KIND, OFFSET, MINS, TABLE,
            )  # fmt: skip
            column = block * 256 + piece * 32 + e
            x_ET = tl.load(
                x + t[None, :] * x_t + column[:, None],
                mask=mask_T[None, :] & (column < columns)[:, None],
                other=0.0,
            )
            acc_OT = tl.dot(w_OE.to(x.dtype.element_ty), x_ET, acc_OT)
    to_OT = (split * tokens + t[None, :]) * outputs + o[:, None]
    tl.store(out + to_OT, acc_OT, mask=mask_O[:, None] & mask_T[None, :])


@triton.jit(do_not_specialize=["count"])
def unpack(
    low, high, scales, mins, steps, least, table, ids, out, count, columns, blocks, rows,
    LOW: tl.constexpr, HIGH: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
    OFFSET: tl.constexpr, MINS: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr,
    BO: tl.constexpr,
):  # fmt: skip
    """Write the values of `count` rows: those of IDS, or from row `ids` on. Grid: (blocks of rows,
    blocks of columns)."""
    o, block, e = tl.program_id(0) * BO + tl.arange(0, BO), tl.program_id(1), tl.arange(0, 32)
    mask_O = o < count
    row_O = tl.load(ids + o, mask=mask_O, other=0) if IDS else ids + o
    row_O = row_O.to(tl.int64)
    EACH: tl.constexpr = (2 if KIND == "single" else 4 if KIND == "half" else 8) * GROUP // 32
    WORDS: tl.constexpr = 8 // EACH
    low_OE, high_OE, step_O, least_O = elements(
        low, high, steps, least, row_O, mask_O, block, blocks, rows, HIGH, KIND, MINS
    )
    for piece in tl.static_range(8):
        if piece % EACH == 0:
            index = block * WORDS + piece // EACH
            scale_O, mins_O = words(scales, mins, row_O, mask_O, index, rows, MINS)
        w_OE = weights(
            low_OE, high_OE, table, scale_O, mins_O, step_O, least_O, piece,
            LOW, HIGH, GROUP, KIND, OFFSET, MINS, TABLE,
        )  # fmt: skip
        column = block * 256 + piece * 32 + e
        to_OE = o.to(tl.int64)[:, None] * columns + column[None, :]
        mask_OE = mask_O[:, None] & (column < columns)[None, :]
        tl.store(out + to_OE, w_OE.to(out.dtype.element_ty), mask=mask_OE)
