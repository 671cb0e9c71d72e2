// Vectors for attention: 8-bit elements of its cache, and lanes selected by index.
#pragma once
#include "simd.hpp"

struct fp8 {
  uint8_t bits;
};  // e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity

// Reading an fp8 as float16 gives 2^-8 of its value; scales are multiplied by this to compensate.
constexpr float kFp8Read = 256.0f;

#if defined(INFERNO_AVX512)

INL F32 load(const fp8* p) {
  __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p));
  __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8);
  return _mm512_cvtph_ps(
      _mm256_or_si256(sign, _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x7f)), 7)));
}
// Store pairs of values that are exact in bfloat16.
INL void store_pairs(bf16* p, F32 even, F32 odd) {
  __m512i high = _mm512_and_si512(_mm512_castps_si512(odd), _mm512_set1_epi32(int32_t(0xffff0000)));
  _mm512_storeu_si512(p, _mm512_or_si512(high, _mm512_srli_epi32(_mm512_castps_si512(even), 16)));
}
// Lanes first <= i < stop from x, the others from y.
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  uint32_t above = first <= 0 ? 0xffff : first >= 16 ? 0 : 0xffffu << first;
  uint32_t below = stop >= 16 ? 0xffff : stop <= 0 ? 0 : (1u << stop) - 1;
  return _mm512_mask_blend_ps(__mmask16(above & below), y, x);
}

#elif defined(INFERNO_AVX2)

INL __m256 widen8(__m128i bytes) {
  __m128i x = _mm_cvtepu8_epi16(bytes);
  __m128i sign = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x80)), 8);
  return _mm256_cvtph_ps(
      _mm_or_si128(sign, _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x7f)), 7)));
}
INL F32 load(const fp8* p) {
  return {widen8(_mm_loadl_epi64((const __m128i*)p)),
          widen8(_mm_loadl_epi64((const __m128i*)(p + 8)))};
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

INL F32 load(const fp8* p) {
  F32 r;
  for (int i = 0; i < 16; i++)
    r[i] = to_float(f16{uint16_t((p[i].bits & 0x80) << 8 | (p[i].bits & 0x7f) << 7)});
  return r;
}
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  for (int i = 0; i < 16; i++) x[i] = i >= first && i < stop ? x[i] : y[i];
  return x;
}

#endif

// One of two consecutive rows of sixteen; in bfloat16 the two are interleaved (a0 b0 a1 b1 ..).
template <class E>
INL F32 row(const E* p, int which) {
  return load(p + 16 * which);
}
INL F32 row(const int8_t* p, int which) { return to_f32(load(p + 16 * which)); }
INL F32 row(const bf16* p, int which) {
  return which ? second(load_pairs(p)) : first(load_pairs(p));
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
