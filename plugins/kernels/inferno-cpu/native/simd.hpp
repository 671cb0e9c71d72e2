// Vectors of sixteen lanes on every machine: one AVX-512 register, two AVX2 registers, or a GCC
// vector that the compiler lowers to the target (four NEON registers). Kernels are written once in
// terms of these, and compiled once for each instruction set. I32 has no operators: GCC adds
// __m512i as 64-bit integers.
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

// The instruction sets of this translation unit, from its compiler flags (CMakeLists.txt). Each one
// includes those above it.
#if defined(__AVX2__)  // with FMA and F16C
#define INFERNO_AVX2
#endif
#if defined(__AVX512F__)  // with BW, DQ, VL and VNNI
#define INFERNO_AVX512
#endif
#if defined(__AVX512BF16__)
#define INFERNO_AVX512_BF16
#endif

#if defined(INFERNO_EMULATE)
#include "emulate.hpp"
#elif defined(INFERNO_AVX2)
#include <immintrin.h>
#endif

#define INL static inline __attribute__((always_inline, unused))
#define UNROLL_FOR _Pragma("GCC unroll 16") for

#if defined(INFERNO_AVX512_BF16)
#define INFERNO_ISA avx512
#elif defined(INFERNO_AVX512)
#define INFERNO_ISA avx512vnni
#elif defined(INFERNO_AVX2)
#define INFERNO_ISA avx2
#else
#define INFERNO_ISA portable
#endif
#define INFERNO_PASTE2(a, b) a##_##b
#define INFERNO_PASTE(a, b) INFERNO_PASTE2(a, b)
// Name of the table that a translation unit exports: name_avx512, name_avx512vnni, name_avx2 or
// name_portable.
#define INFERNO_EXPORT(name) INFERNO_PASTE(name, INFERNO_ISA)

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

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

#if defined(INFERNO_AVX512)

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
INL F32 times_pow2(F32 a, F32 n) { return _mm512_scalef_ps(a, n); }  // a * 2^n for integer n
INL float sum(F32 a) { return _mm512_reduce_add_ps(a); }
INL float largest(F32 a) { return _mm512_reduce_max_ps(a); }

using Pairs = __m512i;  // sixteen lanes of two bf16, the lower index in the lower half
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

#elif defined(INFERNO_AVX2)

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

struct Pairs {  // sixteen lanes of two bf16, the lower index in the lower half
  __m256i lo, hi;
};
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

#else

typedef float F32 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));

#define EACH(expression)                            \
  for (int i = 0; i < 16; i++) r[i] = (expression); \
  return r
INL F32 splat(float x) {
  F32 r;
  EACH(x);
}
INL I32 splat(int32_t x) {
  I32 r;
  EACH(x);
}
INL F32 load(const float* p) {
  F32 r;
  memcpy(&r, p, 64);
  return r;
}
INL F32 load(const bf16* p) {
  F32 r;
  EACH(to_float(p[i]));
}
INL F32 load(const f16* p) {
  F32 r;
  EACH(to_float(p[i]));
}
INL I32 load(const int32_t* p) {
  I32 r;
  memcpy(&r, p, 64);
  return r;
}
INL I32 load(const int8_t* p) {
  I32 r;
  EACH(p[i]);
}
INL I32 load(const uint8_t* p) {
  I32 r;
  EACH(p[i]);
}
INL void store(float* p, F32 x) { memcpy(p, &x, 64); }
INL void store(bf16* p, F32 x) {
  for (int i = 0; i < 16; i++) from_float(p + i, x[i]);
}
INL void store(f16* p, F32 x) {
  for (int i = 0; i < 16; i++) from_float(p + i, x[i]);
}
INL void store(int32_t* p, I32 x) { memcpy(p, &x, 64); }
INL F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
INL F32 max(F32 a, F32 b) {
  F32 r;
  EACH(a[i] > b[i] ? a[i] : b[i]);
}
INL F32 min(F32 a, F32 b) {
  F32 r;
  EACH(a[i] < b[i] ? a[i] : b[i]);
}
INL F32 abs(F32 a) {
  F32 r;
  EACH(__builtin_fabsf(a[i]));
}
INL I32 add(I32 a, I32 b) { return a + b; }
INL F32 to_f32(I32 a) { return __builtin_convertvector(a, F32); }
INL F32 round_f32(F32 a) {
  F32 r;
  EACH(__builtin_nearbyintf(a[i]));
}
INL I32 round_i32(F32 a) { return __builtin_convertvector(round_f32(a), I32); }
INL F32 times_pow2(F32 a, F32 n) {
  I32 u = (__builtin_convertvector(n, I32) + 127) << 23;
  F32 p;
  memcpy(&p, &u, 64);
  return a * p;
}
INL float sum(F32 a) {
  float s[8];
  for (int i = 0; i < 8; i++) s[i] = a[i] + a[i + 8];
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}
INL float largest(F32 a) {
  float m = a[0];
  for (int i = 1; i < 16; i++) m = a[i] > m ? a[i] : m;
  return m;
}

typedef uint32_t Pairs __attribute__((
    vector_size(64)));  // sixteen lanes of two bf16, the lower index in the lower half
INL Pairs load_pairs(const bf16* p) {
  Pairs r;
  memcpy(&r, p, 64);
  return r;
}
INL Pairs splat_pair(uint32_t pair) {
  Pairs r;
  EACH(pair);
}
INL F32 first(Pairs a) {
  a <<= 16;
  F32 r;
  memcpy(&r, &a, 64);
  return r;
}
INL F32 second(Pairs a) {
  a &= 0xffff0000;
  F32 r;
  memcpy(&r, &a, 64);
  return r;
}
INL F32 dot2(F32 sum, Pairs a, Pairs b) {
  return fma(first(a), first(b), fma(second(a), second(b), sum));
}
INL void compute_now(F32&) {}
#undef EACH
#endif

// dot2(sum, a, b) = (sum + a.second * b.second) + a.first * b.first in each lane. AVX-512 and AVX2
// round once after each of the two additions and agree bit for bit, except that the BF16
// instruction treats subnormal numbers as zero. Without FMA the products are exact too, within
// float32's normal range.

// compute_now(a) makes the compiler compute `a` here. GCC may delay a sum until it is used and keep
// all of its inputs in registers, which a loop that uses every register cannot afford.

// `pairs`: thirty-two bf16. `pair` is broadcast to every lane.
INL F32 dot2(F32 sum, const bf16* pairs, uint32_t pair) {
  return dot2(sum, load_pairs(pairs), splat_pair(pair));
}

// Transpose eight columns of sixteen rows of 32-bit elements, rows row_bytes apart, to [8][16],
// aligned to 64 bytes.
#if defined(INFERNO_AVX2)
INL void transpose8(const char* rows, int64_t row_bytes,
                    char* to) {  // eight rows, to the lower halves
  __m256 a[8], b[8];
  UNROLL_FOR (int r = 0; r < 8; r++) a[r] = _mm256_loadu_ps((const float*)(rows + r * row_bytes));
  UNROLL_FOR (int r = 0; r < 8; r += 2) {
    b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
    b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
  }
  UNROLL_FOR (int r = 0; r < 8; r += 4) {
    a[r] = _mm256_shuffle_ps(b[r], b[r + 2], 0x44);
    a[r + 1] = _mm256_shuffle_ps(b[r], b[r + 2], 0xee);
    a[r + 2] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0x44);
    a[r + 3] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0xee);
  }
  UNROLL_FOR (int r = 0; r < 4; r++) {
    _mm256_stream_ps((float*)(to + r * 64), _mm256_permute2f128_ps(a[r], a[r + 4], 0x20));
    _mm256_stream_ps((float*)(to + (r + 4) * 64), _mm256_permute2f128_ps(a[r], a[r + 4], 0x31));
  }
}
INL void transpose(const char* rows, int64_t row_bytes, char* to) {
  transpose8(rows, row_bytes, to);
  transpose8(rows + 8 * row_bytes, row_bytes, to + 32);
}
INL void end_of_stores() {
  _mm_sfence();
}  // makes the non-temporal stores of transpose visible to other threads
#else
INL void transpose(const char* rows, int64_t row_bytes, char* to) {
  for (int k = 0; k < 8; k++)
    for (int r = 0; r < 16; r++) memcpy(to + k * 64 + r * 4, rows + r * row_bytes + k * 4, 4);
}
INL void end_of_stores() {}
#endif

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
