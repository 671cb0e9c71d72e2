"""Elements of the cache: how they are stored, and read.

KIND says what they are: "auto" (the compute dtype), "int8", "fp8" (e4m3, converted by the chip),
"fp8_bits" (by integer operations, for chips without FP8). Those of 8 bits have a scale for each
token and head.

Suffixes of tiles: T tokens, M rows, C elements of a key, N keys.
"""

# A kernel is a program in Triton's language, whose values have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

import triton
import triton.language as tl

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


@triton.jit
def pair(words, odd: tl.constexpr, KIND: tl.constexpr):
    """Return bytes 0 and 2 of each word, or 1 and 3, as bits of float16: in the same place and two
    in each operation, without a conversion. See `unpaired`."""
    if KIND == "int8":
        return ((words >> (8 * odd)) & 0x00FF00FF) ^ 0x64806480  # 1024 + 128 + the element
    else:
        # As in `elements`, without the factor.
        if not odd:
            words = words << 8
        return (words & -0x7FFF8000) | ((words >> 1) & 0x3F803F80)


@triton.jit
def unpaired(words, KIND: tl.constexpr):
    """Return the two elements of each of `pair`'s words, neighbours in the last dimension: those of
    FP8 divided by 256."""
    low = words.to(tl.int16).to(tl.float16, bitcast=True)
    high = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    x = tl.join(low, high).reshape(words.shape[0], 2 * words.shape[1])
    return x - 1152.0 if KIND == "int8" else x


@triton.jit
def side_by_side(words, high: tl.constexpr):
    """Return the low halves of each two neighbours of the last dimension in a word, or the high
    ones."""
    first, second = words.reshape(words.shape[0], words.shape[1] // 2, 2).split()
    if high:
        return ((first >> 16) & 0xFFFF) | (second & -0x10000)
    else:
        return (first & 0xFFFF) | (second << 16)


@triton.jit
def of_keys(words_NC, odd: tl.constexpr, KIND: tl.constexpr):
    """Return the even or the odd elements of keys, (N, C / 2), from their words, (N, C / 4)."""
    return unpaired(pair(words_NC, odd, KIND), KIND)


@triton.jit
def of_values(words_VN, i: tl.constexpr, KIND: tl.constexpr):
    """Return element i of each word of values, as it is multiplied: two neighbouring keys in one
    register."""
    return unpaired(pair(side_by_side(words_VN, i // 2), i % 2, KIND), KIND)


@triton.jit
def halves(x_MC, y_MC):
    """Return two parts of rows in float16, and what they are to be multiplied by: a power of two
    near a row's largest element, so that nothing overflows or is rounded that counts."""
    top_M = tl.maximum(tl.max(tl.abs(x_MC), 1), tl.max(tl.abs(y_MC), 1)).to(tl.float32)
    size_M = (top_M.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    size_M = tl.where(size_M > 0, size_M, 1.0)
    x_MC = (x_MC.to(tl.float32) / size_M[:, None]).to(tl.float16)
    y_MC = (y_MC.to(tl.float32) / size_M[:, None]).to(tl.float16)
    return x_MC, y_MC, size_M
