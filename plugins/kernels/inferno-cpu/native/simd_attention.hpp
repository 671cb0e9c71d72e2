// Functions of vectors that only attention uses.
#pragma once
#include "simd.hpp"

// Subnormal fp8, below 2^-14 of a row's largest element, are read as zero by the instruction that
// multiplies bf16 (kFp8Read).

// Element types of which two consecutive rows of sixteen are stored interleaved (a0 b0 a1 b1 ..).
template <class E>
constexpr bool kPaired = __is_same(E, bf16) || sizeof(E) == 1;

// One of two consecutive rows of sixteen.
template <class E>
INL F32 row(const E* p, int which) {
  if constexpr (kPaired<E>) {
    return which ? second(load_pairs(p)) : first(load_pairs(p));
  } else {
    return load(p + 16 * which);
  }
}

INL void from_float(fp8* to, float x) {  // |x| <= 448, to nearest, ties to even
  uint32_t u;
  memcpy(&u, &x, 4);
  uint32_t a = u & 0x7fffffff;
  uint32_t normal = ((a + 0x7ffff + ((a >> 20) & 1)) >> 20) - (120 << 3);
  float f;
  memcpy(&f, &a, 4);
  f += 16384.0f;  // its last bit is worth 2^-9, the smallest fp8
  uint32_t subnormal;
  memcpy(&subnormal, &f, 4);
  subnormal -= 0x46800000;
  to->bits = uint8_t((u >> 24 & 0x80) | (a < 0x3c800000 ? subnormal : normal));
}

// 2^x for x <= 0, to about 2 units in the last place; 2^-126 from there down. NaN stays NaN.
INL F32 exp2_negative(F32 x) {
  x = max(splat(-126.0f), x);
  F32 n = round_f32(x);
  F32 r = x - n;
  F32 p = fma(splat(1.535336188319500e-4f), r, splat(1.339887440266574e-3f));
  p = fma(p, r, splat(9.618437357674640e-3f));
  p = fma(p, r, splat(5.550332471162809e-2f));
  p = fma(p, r, splat(2.402264791363012e-1f));
  p = fma(p, r, splat(6.931472028550421e-1f));
  return times_pow2(fma(p, r, splat(1.0f)), n);
}
INL F32 tanh(F32 x) {  // 1 - 2 / (e^2x + 1)
  return splat(1.0f) - splat(2.0f) / (exp(x + x) + splat(1.0f));
}
