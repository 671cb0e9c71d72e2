// Dot products of bytes, on the sixteen lanes of simd.hpp: B64 holds four unsigned codes in each
// lane, Four the same four signed bytes in every lane. The sum over a run of fours is a
// Dot<BITS>::Acc, where BITS bounds the codes (at most 2^BITS - 1): without a dot-product
// instruction, small codes are summed in 16 bits.
#pragma once
#include "simd.hpp"

#if defined(INFERNO_AVX512)

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
// (v << n or v >> -n) & mask in each byte; the mask must clear bits shifted in from the next byte.
INL B64 bits(B64 v, int n, uint8_t mask) {
  B64 m = _mm512_set1_epi8(char(mask));
  return _mm512_and_si512(n > 0   ? _mm512_slli_epi16(v, unsigned(n))
                          : n < 0 ? _mm512_srli_epi16(v, unsigned(-n))
                                  : v,
                          m);
}
INL B64 either(B64 a, B64 b) { return _mm512_or_si512(a, b); }
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

#elif defined(INFERNO_AVX2)

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
// (v << n or v >> -n) & mask in each byte; the mask must clear bits shifted in from the next byte.
INL B64 bits(B64 v, int n, uint8_t mask) { return {bits(v.lo, n, mask), bits(v.hi, n, mask)}; }
INL B64 either(B64 a, B64 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
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

#else

typedef uint32_t B64 __attribute__((vector_size(64)));
typedef int16_t I16 __attribute__((vector_size(64)));
struct Four { I16 even, odd; };  // bytes 0 and 2, 1 and 3

INL B64 load_bytes(const uint8_t* p) {
  B64 v;
  memcpy(&v, p, 64);
  return v;
}
INL B64 load_line(const uint8_t* p) { return load_bytes(p); }
INL void store_bytes(uint8_t* p, B64 v) { memcpy(p, &v, 64); }
// (v << n or v >> -n) & mask in each byte; the mask must clear bits shifted in from the next byte.
INL B64 bits(B64 v, int n, uint8_t mask) {
  return (n > 0 ? v << n : n < 0 ? v >> -n : v) & (mask * 0x01010101u);
}
INL B64 either(B64 a, B64 b) { return a | b; }
INL Four load_four(const uint8_t* p) {
  auto pair = [](uint8_t low, uint8_t high) {
    return (int8_t(low) & 0xffffu) | uint32_t(int8_t(high)) << 16;
  };
  return {(I16)(B64{} + pair(p[0], p[2])), (I16)(B64{} + pair(p[1], p[3]))};
}
INL I32 magnitude_bits(F32 x) { return (I32)x & 0x7fffffff; }
INL I32 max_i32(I32 a, I32 b) { return a > b ? a : b; }
INL int32_t largest_i32(I32 a) {
  int32_t m = a[0];
  for (int i = 1; i < 16; i++) m = a[i] > m ? a[i] : m;
  return m;
}
INL int32_t sum_i32(I32 a) {
  int32_t s = 0;
  for (int i = 0; i < 16; i++) s += a[i];
  return s;
}
INL void store_int8(uint8_t* p, I32 a) {
  for (int i = 0; i < 16; i++) p[i] = uint8_t(int8_t(a[i]));
}
INL I16 even_bytes(B64 w) { return (I16)(w & 0x00ff00ffu); }
INL I16 odd_bytes(B64 w) { return (I16)((w >> 8) & 0x00ff00ffu); }
INL I32 sum_pairs(I16 a) { return ((I32)a >> 16) + ((I32)((B64)a << 16) >> 16); }

// Products summed in 16 bits, kRun pairs at a time: see the AVX2 version.
template <int BITS>
struct Dot {
  using Acc = I16;
  static constexpr int kRun = BITS <= 4 ? 8 : BITS == 5 ? 4 : 2;
  static_assert(kRun * 2 * ((1 << BITS) - 1) * 127 <= 32767, "sums of 16 bits");
  static constexpr bool kSigned = false;
  INL B64 code(B64 v) { return v; }
  INL Acc start(int32_t) { return I16{}; }
  INL Acc add(Acc a, B64 w, Four x) { return a + even_bytes(w) * x.even + odd_bytes(w) * x.odd; }
  INL I32 total(Acc a, int32_t first) { return sum_pairs(a) + first; }
};

template <>
struct Dot<8> {  // 255 * 127 fits 16 bits, two of them do not
  using Acc = I32;
  static constexpr int kRun = 8;
  static constexpr bool kSigned = false;
  INL B64 code(B64 v) { return v; }
  INL Acc start(int32_t first) { return splat(first); }
  INL Acc add(Acc a, B64 w, Four x) {
    return a + sum_pairs(even_bytes(w) * x.even) + sum_pairs(odd_bytes(w) * x.odd);
  }
  INL I32 total(Acc a, int32_t) { return a; }
};

#endif
