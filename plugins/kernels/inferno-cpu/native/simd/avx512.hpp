// Sixteen lanes in one AVX-512 register; see ../simd.hpp for what each name means.
#pragma once
#include "avx_transpose.hpp"

using F32 = __m512;
using I32 = __m512i;

INL F32 splat(float x) { return _mm512_set1_ps(x); }
INL I32 splat(int32_t x) { return _mm512_set1_epi32(x); }
INL F32 load(const float* p) { return _mm512_loadu_ps(p); }
INL F32 load(const bf16* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
INL F32 load(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
INL I32 load(const int32_t* p) { return _mm512_loadu_si512(p); }
INL I32 load(const int8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)); }
INL I32 load(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
INL void store(float* p, F32 x) { _mm512_storeu_ps(p, x); }
#if defined(INFERNO_AVX512_BF16)
INL void store(bf16* p, F32 x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }
#else
INL void store(bf16* p, F32 x) {  // to nearest, ties to even; NaN stays NaN
  __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
  __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(rounded));
}
#endif
INL void store(f16* p, F32 x) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, 0)); }
INL void store(int32_t* p, I32 x) { _mm512_storeu_si512(p, x); }
INL F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
INL F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
INL F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
INL F32 abs(F32 a) { return _mm512_abs_ps(a); }
INL I32 add(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
INL F32 to_f32(I32 a) { return _mm512_cvtepi32_ps(a); }
INL I32 round_i32(F32 a) { return _mm512_cvtps_epi32(a); }
INL F32 round_f32(F32 a) { return _mm512_roundscale_ps(a, 0); }
INL F32 times_pow2(F32 a, F32 n) { return _mm512_scalef_ps(a, n); }
INL float sum(F32 a) { return _mm512_reduce_add_ps(a); }
INL float largest(F32 a) { return _mm512_reduce_max_ps(a); }

using Pairs = __m512i;
INL Pairs load_pairs(const bf16* p) { return _mm512_loadu_si512(p); }
INL Pairs splat_pair(uint32_t pair) { return _mm512_set1_epi32(int32_t(pair)); }
INL F32 first(Pairs a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
INL F32 second(Pairs a) {
  return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(int32_t(0xffff0000))));
}
#if defined(INFERNO_AVX512_BF16)
INL F32 dot2(F32 sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
#else
INL F32 dot2(F32 sum, Pairs a, Pairs b) {
  return fma(first(a), first(b), fma(second(a), second(b), sum));
}
#endif
#if defined(INFERNO_EMULATE)
INL void compute_now(F32&) {}
#else
INL void compute_now(F32& a) { asm("" : "+v"(a)); }
#endif

// ---- bytes ----

using B64 = __m512i;
using Four = __m512i;

// In halves: panels are aligned to 32 bytes, and every other load of 64 would cross a cache line.
INL B64 load_bytes(const uint8_t* p) {
  __m256i low = _mm256_loadu_si256((const __m256i*)p),
          high = _mm256_loadu_si256((const __m256i*)(p + 32));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
INL B64 load_line(const uint8_t* p) { return _mm512_loadu_si512(p); }  // aligned to 64 bytes
INL void store_bytes(uint8_t* p, B64 v) { _mm512_storeu_si512(p, v); }
INL B64 bits(B64 v, int n, uint8_t mask) {
  B64 m = _mm512_set1_epi8(char(mask));
  return _mm512_and_si512(n > 0   ? _mm512_slli_epi16(v, unsigned(n))
                          : n < 0 ? _mm512_srli_epi16(v, unsigned(-n))
                                  : v,
                          m);
}
INL B64 subtract(B64 a, uint8_t b) { return _mm512_sub_epi8(a, _mm512_set1_epi8(char(b))); }
INL B64 either(B64 a, B64 b) { return _mm512_or_si512(a, b); }
INL B64 look_up(const uint8_t* table, B64 v) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table)), v);
}
INL F32 load_powers(const uint8_t* p) {
  __m512i x = _mm512_slli_epi32(load(p), 23);
  return _mm512_castsi512_ps(_mm512_max_epi32(x, _mm512_set1_epi32(0x00400000)));
}
INL Four load_four(const uint8_t* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}
INL I32 magnitude_bits(F32 x) { return _mm512_castps_si512(_mm512_abs_ps(x)); }
INL I32 max_i32(I32 a, I32 b) { return _mm512_max_epi32(a, b); }
INL int32_t largest_i32(I32 a) {
  __m256i s = _mm256_max_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  __m128i h = _mm_max_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
INL int32_t sum_i32(I32 a) { return _mm512_reduce_add_epi32(a); }
INL void store_int8(uint8_t* p, I32 a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }

template <int BITS>
struct Dot {
  using Acc = I32;
  static constexpr int kRun = 8;
  static constexpr bool kSigned = false;
  INL B64 code(B64 v) { return v; }
  INL Acc start(int32_t first) { return splat(first); }
  INL Acc add(Acc a, B64 w, Four x) { return _mm512_dpbusd_epi32(a, w, x); }
  INL I32 total(Acc a, int32_t) { return a; }
};

// ---- attention ----

INL Pairs load_pairs(const int16_t* p) { return _mm512_loadu_si512(p); }
INL Pairs load_pairs(const int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
}
INL Pairs load_pairs(const fp8* p) {
  __m512i x = _mm512_slli_epi16(load_pairs((const int8_t*)p), 4);  // the sign is in the top bits
  return _mm512_and_si512(x, _mm512_set1_epi16(int16_t(0x87f0)));
}
#if defined(INFERNO_AVX512_BF16)
INL Pairs load_values(const fp8* p) {
  alignas(16) static constexpr uint16_t kSubnormal[8] = {0,      0x3b00, 0x3b80, 0x3bc0,
                                                         0x3c00, 0x3c20, 0x3c40, 0x3c60};
  __m512i table = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)kSubnormal));
  __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)p));
  __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7f));
  __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(0x3c00));
  __mmask32 small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
  __m512i value = _mm512_mask_permutexvar_epi16(normal, small, magnitude, table);
  return _mm512_or_si512(
      value, _mm512_and_si512(_mm512_slli_epi16(x, 8), _mm512_set1_epi16(int16_t(0x8000))));
}
#endif
INL void store_pairs(void* p, Pairs x) { _mm512_storeu_si512(p, x); }
#if defined(INFERNO_EMULATE)
INL I32 dot2(I32 sum, Pairs a, Pairs b) { return _mm512_dpwssd_epi32(sum, a, b); }
#else
INL I32 dot2(I32 sum, Pairs a, Pairs b) {  // GCC 12 reorders the intrinsic and spills registers
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
#endif
INL void store(int16_t* p, I32 x) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(x)); }
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  uint32_t above = first <= 0 ? 0xffff : first >= 16 ? 0 : 0xffffu << first;
  uint32_t below = stop >= 16 ? 0xffff : stop <= 0 ? 0 : (1u << stop) - 1;
  return _mm512_mask_blend_ps(__mmask16(above & below), y, x);
}
