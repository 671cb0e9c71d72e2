// Sixteen lanes in two AVX2 registers; see ../simd.hpp for what each name means.
#pragma once
#include "avx_transpose.hpp"

struct F32 { __m256 lo, hi; };
struct I32 { __m256i lo, hi; };
INL F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
INL F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
INL F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
INL F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }

INL F32 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INL I32 splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INL F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INL __m256 widen8(const bf16* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
INL F32 load(const bf16* p) { return {widen8(p), widen8(p + 8)}; }
INL F32 load(const f16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
INL I32 load(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
INL I32 load(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
INL I32 load(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)),
          _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
INL void store(float* p, F32 x) { _mm256_storeu_ps(p, x.lo), _mm256_storeu_ps(p + 8, x.hi); }
INL __m128i narrow8(__m256 x) {  // bf16, to nearest even; NaN stays NaN
  __m256i u = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  __m256i r = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
INL void store(bf16* p, F32 x) {
  _mm_storeu_si128((__m128i*)p, narrow8(x.lo));
  _mm_storeu_si128((__m128i*)(p + 8), narrow8(x.hi));
}
INL void store(f16* p, F32 x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.lo, 0));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.hi, 0));
}
INL void store(int32_t* p, I32 x) {
  _mm256_storeu_si256((__m256i*)p, x.lo), _mm256_storeu_si256((__m256i*)(p + 8), x.hi);
}
INL F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
INL F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
INL F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
INL F32 abs(F32 a) {
  __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
}
INL I32 add(I32 a, I32 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
INL F32 to_f32(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
INL I32 round_i32(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
INL F32 round_f32(F32 a) { return {_mm256_round_ps(a.lo, 8), _mm256_round_ps(a.hi, 8)}; }
INL __m256 pow2_8(__m256 n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
INL F32 times_pow2(F32 a, F32 n) {
  return {_mm256_mul_ps(a.lo, pow2_8(n.lo)), _mm256_mul_ps(a.hi, pow2_8(n.hi))};
}
INL float sum(F32 a) {
  __m256 s = _mm256_add_ps(a.lo, a.hi);
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
INL float largest(F32 a) {
  __m256 s = _mm256_max_ps(a.lo, a.hi);
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

struct Pairs { __m256i lo, hi; };
INL Pairs load_pairs(const bf16* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 16))};
}
INL Pairs splat_pair(uint32_t pair) {
  return {_mm256_set1_epi32(int32_t(pair)), _mm256_set1_epi32(int32_t(pair))};
}
INL F32 first(Pairs a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))};
}
INL F32 second(Pairs a) {
  __m256i m = _mm256_set1_epi32(int32_t(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(a.lo, m)),
          _mm256_castsi256_ps(_mm256_and_si256(a.hi, m))};
}
INL F32 dot2(F32 sum, Pairs a, Pairs b) {
  return fma(first(a), first(b), fma(second(a), second(b), sum));
}
INL void compute_now(F32& a) { asm("" : "+x"(a.lo), "+x"(a.hi)); }

// ---- bytes ----

struct B64 { __m256i lo, hi; };
using Four = __m256i;

INL B64 load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
INL B64 load_line(const uint8_t* p) { return load_bytes(p); }
INL void store_bytes(uint8_t* p, B64 v) {
  _mm256_storeu_si256((__m256i*)p, v.lo);
  _mm256_storeu_si256((__m256i*)(p + 32), v.hi);
}
INL __m256i bits(__m256i v, int n, uint8_t mask) {
  __m256i m = _mm256_set1_epi8(char(mask));
  return _mm256_and_si256(n > 0   ? _mm256_slli_epi16(v, n)
                          : n < 0 ? _mm256_srli_epi16(v, -n)
                                  : v,
                          m);
}
INL B64 bits(B64 v, int n, uint8_t mask) { return {bits(v.lo, n, mask), bits(v.hi, n, mask)}; }
INL B64 either(B64 a, B64 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
INL B64 look_up(const uint8_t* table, B64 v) {
  __m256i t = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(t, v.lo), _mm256_shuffle_epi8(t, v.hi)};
}
INL __m256 powers8(__m256i x) {
  return _mm256_castsi256_ps(
      _mm256_max_epi32(_mm256_slli_epi32(x, 23), _mm256_set1_epi32(0x00400000)));
}
INL F32 load_powers(const uint8_t* p) {
  I32 x = load(p);
  return {powers8(x.lo), powers8(x.hi)};
}
INL Four load_four(const uint8_t* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}
INL I32 magnitude_bits(F32 x) {
  F32 m = abs(x);
  return {_mm256_castps_si256(m.lo), _mm256_castps_si256(m.hi)};
}
INL I32 max_i32(I32 a, I32 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
INL int32_t largest_i32(I32 a) {
  __m256i s = _mm256_max_epi32(a.lo, a.hi);
  __m128i h = _mm_max_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
INL int32_t sum_i32(I32 a) {
  __m256i s = _mm256_add_epi32(a.lo, a.hi);
  __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
INL void store_int8(uint8_t* p, I32 a) {
  __m128i lo = _mm_packs_epi32(_mm256_castsi256_si128(a.lo), _mm256_extracti128_si256(a.lo, 1));
  __m128i hi = _mm_packs_epi32(_mm256_castsi256_si128(a.hi), _mm256_extracti128_si256(a.hi, 1));
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(lo, hi));
}

#if defined(INFERNO_AVXVNNI)

template <int BITS>
struct Dot {
  using Acc = I32;
  static constexpr int kRun = 8;
  static constexpr bool kSigned = false;
  INL B64 code(B64 v) { return v; }
  INL Acc start(int32_t first) { return splat(first); }
  INL Acc add(Acc a, B64 w, Four x) {
    return {_mm256_dpbusd_avx_epi32(a.lo, w.lo, x), _mm256_dpbusd_avx_epi32(a.hi, w.hi, x)};
  }
  INL I32 total(Acc a, int32_t) { return a; }
};

#else

// vpmaddubsw adds two products of a code (0 .. 2^BITS - 1) and an activation (-127 .. 127) into 16
// bits, saturating. kRun of these sums stay within +-32767, so nothing saturates and nothing wraps:
// 4 bits 8 * 2 * 15 * 127 = 30480; 5 bits 4 * 2 * 31 * 127 = 31496; 6 bits 2 * 2 * 63 * 127 =
// 32004.
template <int BITS>
struct Dot {
  struct Acc { __m256i lo, hi; };
  static constexpr int kRun = BITS <= 4 ? 8 : BITS == 5 ? 4 : 2;
  static_assert(kRun * 2 * ((1 << BITS) - 1) * 127 <= 32767, "sums of 16 bits");
  static constexpr bool kSigned = false;
  INL B64 code(B64 v) { return v; }
  INL Acc start(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  INL Acc add(Acc a, B64 w, Four x) {
    return {_mm256_add_epi16(a.lo, _mm256_maddubs_epi16(w.lo, x)),
            _mm256_add_epi16(a.hi, _mm256_maddubs_epi16(w.hi, x))};
  }
  INL I32 total(Acc a, int32_t first) {
    __m256i one = _mm256_set1_epi16(1), f = _mm256_set1_epi32(first);
    return {_mm256_add_epi32(_mm256_madd_epi16(a.lo, one), f),
            _mm256_add_epi32(_mm256_madd_epi16(a.hi, one), f)};
  }
};

// Eight bits: two products of 255 * 127 would saturate. Instead, multiply |w| <= 128, unsigned, by
// x with the sign of w: two such products are at most 2 * 128 * 127 = 32512, for w = -128 too.
template <>
struct Dot<8> {
  using Acc = I32;
  static constexpr int kRun = 8;
  static constexpr bool kSigned = true;
  INL B64 code(B64 v) {  // 0..255 stands for -128..127
    __m256i half = _mm256_set1_epi8(char(0x80));
    return {_mm256_xor_si256(v.lo, half), _mm256_xor_si256(v.hi, half)};
  }
  INL Acc start(int32_t) { return splat(int32_t(0)); }
  INL __m256i add(__m256i a, __m256i w, Four x) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(a, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  INL Acc add(Acc a, B64 w, Four x) { return {add(a.lo, w.lo, x), add(a.hi, w.hi, x)}; }
  INL I32 total(Acc a, int32_t) { return a; }
};

#endif

// ---- attention ----

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
