// Vectors for attention: 8-bit elements of its cache, 16-bit integers, and lanes selected by index.
#pragma once
#include "simd.hpp"

struct fp8 {
  uint8_t bits;
};  // e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity

// An fp8 whose exponent and mantissa are shifted to those of a bf16 is a bf16 of 2^-120 times its
// value. Subnormal ones, below 2^-14 of a row's largest element, are read as zero by the
// instruction that multiplies bf16.
constexpr float kFp8Read = 0x1p120f;

#if defined(INFERNO_AVX512)

INL Pairs load_pairs(const int16_t* p) { return _mm512_loadu_si512(p); }
INL Pairs load_pairs(const int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
}
INL Pairs load_pairs(const fp8* p) {
  __m512i x = _mm512_slli_epi16(load_pairs((const int8_t*)p), 4);  // the sign is in the top bits
  return _mm512_and_si512(x, _mm512_set1_epi16(int16_t(0x87f0)));
}
INL void store_pairs(void* p, Pairs x) { _mm512_storeu_si512(p, x); }
INL I32 dot2(I32 sum, Pairs a, Pairs b) { return _mm512_dpwssd_epi32(sum, a, b); }
INL void store(int16_t* p, I32 x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(x));
}
// Lanes first <= i < stop from x, the others from y.
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  uint32_t above = first <= 0 ? 0xffff : first >= 16 ? 0 : 0xffffu << first;
  uint32_t below = stop >= 16 ? 0xffff : stop <= 0 ? 0 : (1u << stop) - 1;
  return _mm512_mask_blend_ps(__mmask16(above & below), y, x);
}

#elif defined(INFERNO_AVX2)

INL Pairs load_pairs(const int16_t* p) { return load_pairs((const bf16*)p); }
INL Pairs load_pairs(const int8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(p + 16)))};
}
INL Pairs load_pairs(const fp8* p) {
  Pairs x = load_pairs((const int8_t*)p);
  __m256i mask = _mm256_set1_epi16(int16_t(0x87f0));
  return {_mm256_and_si256(_mm256_slli_epi16(x.lo, 4), mask),  // the sign is in the top bits
          _mm256_and_si256(_mm256_slli_epi16(x.hi, 4), mask)};
}
INL void store_pairs(void* p, Pairs x) {
  _mm256_storeu_si256((__m256i*)p, x.lo), _mm256_storeu_si256((__m256i*)p + 1, x.hi);
}
INL I32 dot2(I32 sum, Pairs a, Pairs b) {
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
INL void store(int16_t* p, I32 x) {
  __m256i mixed = _mm256_packs_epi32(x.lo, x.hi);
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(mixed, 0xd8));
}
INL __m256 lanes8(int64_t first, int64_t stop) {
  __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  int from = first < 0   ? 0
             : first > 8 ? 8
                         : int(first),
      to = stop < 0   ? 0
           : stop > 8 ? 8
                      : int(stop);
  return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(from), i),
                                                 _mm256_cmpgt_epi32(_mm256_set1_epi32(to), i)));
}
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  return {_mm256_blendv_ps(y.lo, x.lo, lanes8(first, stop)),
          _mm256_blendv_ps(y.hi, x.hi, lanes8(first - 8, stop - 8))};
}

#else

INL uint32_t as_pair(int16_t a, int16_t b) { return uint32_t(uint16_t(b)) << 16 | uint16_t(a); }
INL Pairs load_pairs(const int16_t* p) { return load_pairs((const bf16*)p); }
INL Pairs load_pairs(const int8_t* p) {
  Pairs r;
  for (int i = 0; i < 16; i++) r[i] = as_pair(p[2 * i], p[2 * i + 1]);
  return r;
}
INL Pairs load_pairs(const fp8* p) {
  return (load_pairs((const int8_t*)p) << 4) & 0x87f087f0;  // the sign is in the top bits
}
INL void store_pairs(void* p, Pairs x) { memcpy(p, &x, 64); }
INL I32 dot2(I32 sum, Pairs a, Pairs b) {
  I32 x, y;
  memcpy(&x, &a, 64), memcpy(&y, &b, 64);
  return sum + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
}
INL void store(int16_t* p, I32 x) {
  for (int i = 0; i < 16; i++) p[i] = int16_t(x[i]);
}
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  for (int i = 0; i < 16; i++) x[i] = i >= first && i < stop ? x[i] : y[i];
  return x;
}

#endif

// dot2(sum, a, b) of 16-bit integers = sum + a.first * b.first + a.second * b.second in each lane.

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
