// Vectors of sixteen lanes on every machine: one AVX-512 register, two of AVX2 or of SVE with 256
// bits, four of SSE or NEON, or a GCC vector that the compiler lowers to the target. Kernels are
// written once in terms of these, and compiled for each level that gains from it (CMakeLists.txt).
// simd/LEVEL.hpp defines the vectors of a level; this file chooses one by the compiler's flags, and
// holds what is the same on all.
//
// Every translation unit that includes this is compiled several times with different flags. Nothing
// in it may have external linkage but the table it exports, and it may use no std:: template that
// is not inlined (vector, function, sort): the linker keeps one copy of such a function, perhaps
// the one with instructions that this machine lacks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dtype.hpp"

// The instruction sets of this translation unit, from its compiler flags. Each one includes those
// above it, but AVX-512 does not include AVX-VNNI.
#if defined(__SSE4_2__)
#define INFERNO_SSE42
#endif
#if defined(__AVX2__)  // with FMA and F16C
#define INFERNO_AVX2
#endif
#if defined(__AVXVNNI__)
#define INFERNO_AVXVNNI
#endif
#if defined(__AVX512F__)  // with BW, DQ, VL and VNNI
#define INFERNO_AVX512
#endif
#if defined(__AVX512BF16__)
#define INFERNO_AVX512_BF16
#endif
#if defined(__AMX_TILE__)  // with BF16 and INT8
#define INFERNO_AMX
#endif

// INFERNO_NEON is a flag of its own (CMakeLists.txt): every 64-bit ARM has it, so that without it
// "portable" is told from "neon".
#if defined(__ARM_FEATURE_DOTPROD)
#define INFERNO_NEON_DOT
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)  // with bfloat16's
#define INFERNO_NEON_MATRIX
#endif
#if defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS == 256
#define INFERNO_SVE256
#endif
#if defined(INFERNO_AVX512_BF16) || defined(INFERNO_NEON_MATRIX)
#define INFERNO_BF16  // dot2 is one instruction
#endif

#if defined(INFERNO_EMULATE)
#include "emulate.hpp"
#elif defined(INFERNO_SSE42)
#include <immintrin.h>
#endif

#define INL static inline __attribute__((always_inline, unused))
#define UNROLL_FOR _Pragma("GCC unroll 16") for

// Name of the table that a translation unit exports: dense_avx2. CMakeLists.txt defines
// INFERNO_LEVEL as the level's name.
#define INFERNO_PASTE2(a, b) a##_##b
#define INFERNO_PASTE(a, b) INFERNO_PASTE2(a, b)
#define INFERNO_EXPORT(name) INFERNO_PASTE(name, INFERNO_LEVEL)

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
struct fp8 {
  uint8_t bits;
};  // e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity

// ---- scalars ----

INL float to_float(float x) { return x; }
INL float to_float(bf16 x) {
  uint32_t u = uint32_t(x.bits) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
INL float to_float(f16 x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  uint32_t sign = uint32_t(x.bits & 0x8000) << 16, exponent = (x.bits >> 10) & 31,
           mantissa = x.bits & 1023, u;
  if (exponent == 31) {
    u = sign | 0x7f800000 | (mantissa << 13) | (mantissa ? 0x400000 : 0);
  } else if (exponent) {
    u = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {
    float f = float(mantissa) * 0x1p-24f;  // subnormals are multiples of 2^-24
    memcpy(&u, &f, 4);
    u |= sign;
  }
  float f;
  memcpy(&f, &u, 4);
  return f;
#endif
}
INL void from_float(float* to, float x) { *to = x; }
INL void from_float(bf16* to, float x) {  // to nearest, ties to even
  uint32_t u;
  memcpy(&u, &x, 4);
  bool nan = (u & 0x7fffffff) > 0x7f800000;
  to->bits = nan ? uint16_t((u >> 16) | 0x40) : uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
INL void from_float(f16* to, float x) {
#if defined(__F16C__)
  to->bits = _cvtss_sh(x, 0);
#else
  uint32_t u;
  memcpy(&u, &x, 4);
  uint16_t sign = uint16_t((u >> 16) & 0x8000);
  uint32_t a = u & 0x7fffffff;
  if (a >= 0x7f800000) {
    to->bits = uint16_t(sign | 0x7c00 | (a > 0x7f800000 ? 0x200 | ((a >> 13) & 0x3ff) : 0));
  } else if (a >= 0x477ff000) {
    to->bits = uint16_t(sign | 0x7c00);
  } else if (a < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded mantissa in the low bits
    float f;
    memcpy(&f, &a, 4);
    f += 0.5f;
    memcpy(&a, &f, 4);
    to->bits = uint16_t(sign | (a - 0x3f000000));
  } else {
    a += 0xc8000fff + ((a >> 13) & 1);
    to->bits = uint16_t(sign | (a >> 13));
  }
#endif
}

INL int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
INL int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

// Call `call` with an element of the type that `dtype` names.
template <class Call>
INL void with_type(int dtype, const Call& call) {
  switch (dtype) {
    case kFloat32: return call(float{});
    case kBFloat16: return call(bf16{});
    default: return call(f16{});
  }
}

// ---- vectors ----

// Each header defines:
// F32, I32   Sixteen lanes of float32, of int32. F32 has + - * /. I32 has no operators, since GCC
//            adds __m512i as 64-bit integers: add(a, b).
//            splat, load (from float, bf16, f16, int32_t, int8_t, uint8_t),
//            store (to float, bf16, f16, int32_t), fma, max and min (the second operand if either
//            is NaN), abs, to_f32, round_i32, round_f32, times_pow2(a, n) = a * 2^n for an integer
//            n, sum, largest (across the lanes).
//            keep(x, y, first, stop): lanes first <= i < stop from x, the others from y.
// Pairs      Sixteen lanes of two bf16, the lower index in the lower half: load_pairs, splat_pair,
//            store_pairs; first and second as F32; dot2(F32 sum, a, b), see below.
//            Of two int16_t: load_pairs (from int16_t, and from int8_t, widened), and dot2(I32 sum,
//            a, b) = sum + a.first * b.first + a.second * b.second; store(int16_t*, I32).
//            load_pairs from fp8: as bf16 of 2^-120 times the value; with INFERNO_BF16 load_values:
//            as bf16 of the value, never subnormal.
// B64        64 bytes, four unsigned codes in each lane: load_bytes, load_line (aligned to 64
//            bytes), store_bytes, either(a, b), and bits(v, n, mask): (v << n or v >> -n) & mask in
//            each byte, where the mask clears bits shifted in from the next byte.
//            look_up(table, v): in each byte the table's byte that v, 0 to 15, counts to. The table
//            is aligned to 16 bytes. load_powers: sixteen bytes e as float32 2^(e - 127), the
//            subnormal one of 0 too; infinity for 255.
// Four       The same four signed bytes in every lane: load_four.
// Dot<BITS>  Products of a B64 of codes (at most 2^BITS - 1) and a Four. Without an instruction for
//            these, small codes are summed in 16 bits, in a Dot<BITS>::Acc: start, kRun times add,
//            total. code(v) is applied to codes as they are read, and makes them signed if
//            kSigned.
// With INFERNO_NEON_MATRIX also products of eight codes and two tokens: Eights, interleave,
//            load_eights, PairSums, start_pair, multiply_eights; first and second as I32. And of
//            four bf16 in eight bytes: FloatPairs, multiply_eights; first and second as F32.
// For quantizing: magnitude_bits, max_i32, largest_i32, sum_i32, store_int8.
// transpose(rows, row_bytes, to): eight columns of sixteen rows of 32-bit elements, rows row_bytes
//            apart, to [8][16], aligned to 64 bytes; end_of_stores() makes it visible to others.
// compute_now(a) makes the compiler compute `a` here. GCC may delay a sum until it is used and keep
//            all of its inputs in registers, which a loop that uses every register cannot afford.

#if defined(INFERNO_AVX512)
#include "simd/avx512.hpp"
#elif defined(INFERNO_AVX2)
#include "simd/avx2.hpp"
#elif defined(INFERNO_SSE42)
#include "simd/sse42.hpp"
#elif defined(INFERNO_SVE256)
#include "simd/sve256.hpp"
#elif defined(INFERNO_NEON)
#include "simd/neon.hpp"
#else
#include "simd/portable.hpp"
#endif

// dot2(sum, a, b) = (sum + a.second * b.second) + a.first * b.first in each lane. AVX-512 and AVX2
// round once after each of the two additions and agree bit for bit, except that the BF16
// instruction treats subnormal numbers as zero. Without FMA the products are exact too, within
// float32's normal range.

// `pairs`: thirty-two bf16. `pair` is broadcast to every lane.
INL F32 dot2(F32 sum, const bf16* pairs, uint32_t pair) {
  return dot2(sum, load_pairs(pairs), splat_pair(pair));
}

// An fp8 whose exponent and mantissa are shifted to those of a bf16 is a bf16 of 2^-120 times its
// value, subnormal if the fp8 is: load_pairs.
constexpr float kFp8Read = 0x1p120f;
INL float to_float(fp8 x) {  // NaN becomes 480
  uint32_t u = uint32_t(x.bits & 0x7f) << 20 | uint32_t(x.bits & 0x80) << 24;
  float f;
  memcpy(&f, &u, 4);
  return f * kFp8Read;
}

// e^x to about 2 units in the last place for -87 <= x <= 88; x is clamped to that range.
INL F32 exp(F32 x) {
  x = max(min(x, splat(88.0f)), splat(-87.0f));
  F32 n = round_f32(x * splat(1.44269504f));
  F32 r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  F32 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + splat(1.0f));
  return times_pow2(p, n);
}

// Transpose sixteen rows of n elements to [n][16], in squares of four: the `transpose` of each level
// bypasses the cache.
INL void transpose_rows(const float* rows, int64_t n, float* to) {
  typedef float Four __attribute__((vector_size(16)));
  for (int64_t g = 0; g < 16; g += 4)
    for (int64_t j = 0; j < n; j += 4) {
      Four r[4];
      for (int i = 0; i < 4; i++) memcpy(&r[i], rows + (g + i) * n + j, 16);
      const Four low = {r[0][0], r[1][0], r[0][1], r[1][1]},
                 high = {r[0][2], r[1][2], r[0][3], r[1][3]};
      const Four low2 = {r[2][0], r[3][0], r[2][1], r[3][1]},
                 high2 = {r[2][2], r[3][2], r[2][3], r[3][3]};
      const Four column[4] = {{low[0], low[1], low2[0], low2[1]},
                              {low[2], low[3], low2[2], low2[3]},
                              {high[0], high[1], high2[0], high2[1]},
                              {high[2], high[3], high2[2], high2[3]}};
      for (int i = 0; i < 4; i++) memcpy(to + (j + i) * 16 + g, &column[i], 16);
    }
}
