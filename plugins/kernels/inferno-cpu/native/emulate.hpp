// Intrinsics of AVX-512 and AVX-VNNI as plain code, to test the kernels on a machine without them
// (CMake: INFERNO_EMULATE). Most come from SIMDe (Debian: libsimde-dev); those missing from its
// version 0.7 are here, lane by lane. Slow, for tests only.
//
// An intrinsic that is missing from both fails to compile with "target specific option mismatch":
// add it below.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <simde/x86/avx512.h>
#pragma GCC diagnostic pop

#define EMULATED static inline __attribute__((unused))

template <class To, class From>
EMULATED To emulated_bits(const From& x) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To y;
  memcpy(&y, &x, sizeof(To));
  return y;
}

// Lanes as an array, and back.
template <class T, int N>
struct EmulatedLanes {
  T at[N];
};
using EmulatedF16 = EmulatedLanes<float, 16>;
using EmulatedI16 = EmulatedLanes<int32_t, 16>;

// Lane i of the RESULT, made of TYPE[N], is `expression` of i.
#define EMULATE_EACH(RESULT, TYPE, N, expression)         \
  EmulatedLanes<TYPE, N> r;                               \
  for (int i = 0; i < N; i++) r.at[i] = TYPE(expression); \
  return emulated_bits<RESULT>(r)
#define LANES(TYPE, x) (emulated_bits<EmulatedLanes<TYPE, int(sizeof(x) / sizeof(TYPE))>>(x))

// ---- conversions ----

EMULATED __m512 emulated_cvtepi32_ps(__m512i a) {
  auto x = LANES(int32_t, a);
  EMULATE_EACH(__m512, float, 16, x.at[i]);
}
EMULATED __m512i emulated_cvtps_epi32(__m512 a) {
  auto x = LANES(float, a);
  EMULATE_EACH(__m512i, int32_t, 16, _mm_cvtss_si32(_mm_set_ss(x.at[i])));
}
EMULATED __m512i emulated_cvtepu16_epi32(__m256i a) {
  auto x = LANES(uint16_t, a);
  EMULATE_EACH(__m512i, int32_t, 16, x.at[i]);
}
EMULATED __m512i emulated_cvtepi16_epi32(__m256i a) {
  auto x = LANES(int16_t, a);
  EMULATE_EACH(__m512i, int32_t, 16, x.at[i]);
}
EMULATED __m512i emulated_cvtepi8_epi32(__m128i a) {
  auto x = LANES(int8_t, a);
  EMULATE_EACH(__m512i, int32_t, 16, x.at[i]);
}
EMULATED __m512i emulated_cvtepu8_epi32(__m128i a) {
  auto x = LANES(uint8_t, a);
  EMULATE_EACH(__m512i, int32_t, 16, x.at[i]);
}
EMULATED __m512i emulated_cvtepi8_epi16(__m256i a) {
  auto x = LANES(int8_t, a);
  EMULATE_EACH(__m512i, int16_t, 32, x.at[i]);
}
EMULATED __m512i emulated_cvtepu8_epi16(__m256i a) {
  auto x = LANES(uint8_t, a);
  EMULATE_EACH(__m512i, int16_t, 32, x.at[i]);
}
EMULATED uint32_t emulated_cmplt_epu16_mask(__m512i a, __m512i b) {
  auto x = LANES(uint16_t, a), y = LANES(uint16_t, b);
  uint32_t mask = 0;
  for (int i = 0; i < 32; i++) mask |= uint32_t(x.at[i] < y.at[i]) << i;
  return mask;
}
EMULATED __m256i emulated_cvtepi32_epi16(__m512i a) {
  auto x = LANES(int32_t, a);
  EMULATE_EACH(__m256i, int16_t, 16, x.at[i]);
}
EMULATED __m128i emulated_cvtepi32_epi8(__m512i a) {
  auto x = LANES(int32_t, a);
  EMULATE_EACH(__m128i, int8_t, 16, x.at[i]);
}
EMULATED int32_t emulated_clamp8(int32_t x) { return x < -128 ? -128 : x > 127 ? 127 : x; }
EMULATED __m128i emulated_cvtsepi32_epi8(__m512i a) {
  auto x = LANES(int32_t, a);
  EMULATE_EACH(__m128i, int8_t, 16, emulated_clamp8(x.at[i]));
}
EMULATED __m512 emulated_cvtph_ps(__m256i a) {
  auto x = LANES(uint16_t, a);
  EMULATE_EACH(__m512, float, 16, _cvtsh_ss(x.at[i]));
}
EMULATED __m256i emulated_cvtps_ph(__m512 a) {
  auto x = LANES(float, a);
  EMULATE_EACH(__m256i, uint16_t, 16, _cvtss_sh(x.at[i], 0));
}
// Like the instruction: to nearest even, NaN made quiet, subnormal numbers to zero with their sign.
EMULATED uint16_t emulated_bfloat16(float x) {
  uint32_t u = emulated_bits<uint32_t>(x), magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t((u >> 16) | 0x40);
  if (magnitude < 0x00800000) return uint16_t((u >> 16) & 0x8000);
  return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
EMULATED __m256i emulated_cvtneps_pbh(__m512 a) {
  auto x = LANES(float, a);
  EMULATE_EACH(__m256i, uint16_t, 16, emulated_bfloat16(x.at[i]));
}
EMULATED __m512i emulated_cvtne2ps_pbh(__m512 high, __m512 low) {
  auto x = LANES(float, low), y = LANES(float, high);
  EMULATE_EACH(__m512i, uint16_t, 32, emulated_bfloat16(i < 16 ? x.at[i] : y.at[i - 16]));
}

// ---- arithmetic ----

// Like the instruction: the odd element first, each product fused with the addition, subnormal
// numbers treated as zero.
EMULATED float emulated_flush(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}
EMULATED __m512 emulated_dpbf16_ps(__m512 sum, __m512i a, __m512i b) {
  auto s = LANES(float, sum);
  auto x = LANES(uint32_t, a), y = LANES(uint32_t, b);
  auto value = [](uint32_t u) { return emulated_flush(emulated_bits<float>(u)); };
  for (int i = 0; i < 16; i++) {
    float odd = __builtin_fmaf(value(x.at[i] & 0xffff0000), value(y.at[i] & 0xffff0000),
                               emulated_flush(s.at[i]));
    s.at[i] = emulated_flush(
        __builtin_fmaf(value(x.at[i] << 16), value(y.at[i] << 16), emulated_flush(odd)));
  }
  return emulated_bits<__m512>(s);
}
// Not inlined: kernels use it so often that compiling would take minutes.
__attribute__((noinline, unused)) static __m512i emulated_dpbusd_epi32(__m512i sum, __m512i a,
                                                                       __m512i b) {
  auto s = LANES(int32_t, sum);
  auto x = LANES(uint8_t, a);
  auto y = LANES(int8_t, b);
  for (int i = 0; i < 64; i++) s.at[i / 4] += x.at[i] * y.at[i];
  return emulated_bits<__m512i>(s);
}
EMULATED __m256i emulated_dpbusd_epi32(__m256i sum, __m256i a, __m256i b) {
  auto s = LANES(int32_t, sum);
  auto x = LANES(uint8_t, a);
  auto y = LANES(int8_t, b);
  for (int i = 0; i < 32; i++) s.at[i / 4] += x.at[i] * y.at[i];
  return emulated_bits<__m256i>(s);
}
template <int OPERATION>
EMULATED __m512 emulated_roundscale_ps(__m512 a) {
  static_assert(OPERATION == 0 || OPERATION == 8, "to the nearest integer");
  auto x = LANES(float, a);
  EMULATE_EACH(__m512, float, 16, __builtin_nearbyintf(x.at[i]));
}
EMULATED __m512 emulated_scalef_ps(__m512 a, __m512 n) {
  auto x = LANES(float, a), e = LANES(float, n);
  EMULATE_EACH(__m512, float, 16, __builtin_ldexpf(x.at[i], int(__builtin_floorf(e.at[i]))));
}
EMULATED float emulated_reduce_add_ps(__m512 a) {
  auto x = LANES(float, a);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) x.at[i] += x.at[i + width];
  return x.at[0];
}
EMULATED float emulated_reduce_max_ps(__m512 a) {
  auto x = LANES(float, a);
  for (int i = 1; i < 16; i++) x.at[0] = x.at[i] > x.at[0] ? x.at[i] : x.at[0];
  return x.at[0];
}
EMULATED int32_t emulated_reduce_add_epi32(__m512i a) {
  auto x = LANES(uint32_t, a);
  for (int i = 1; i < 16; i++) x.at[0] += x.at[i];
  return int32_t(x.at[0]);
}
EMULATED __m512i emulated_mul_epi32_low(__m512i a, __m512i b) {
  auto x = LANES(uint32_t, a), y = LANES(uint32_t, b);
  EMULATE_EACH(__m512i, uint32_t, 16, x.at[i] * y.at[i]);
}
EMULATED __m512i emulated_unpack(__m512i a, __m512i b,
                                 int offset) {  // 32-bit elements of each 128-bit lane
  auto x = LANES(uint32_t, a), y = LANES(uint32_t, b);
  EMULATE_EACH(__m512i, uint32_t, 16, ((i & 1) ? y : x).at[(i & ~3) + offset + (i & 3) / 2]);
}

#undef LANES
#undef EMULATE_EACH
#undef EMULATED

#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi16_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepi8_epi16
#undef _mm512_cvtepu8_epi16
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtsepi32_epi8
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtneps_pbh
#undef _mm512_cvtne2ps_pbh
#undef _mm512_dpbf16_ps
#undef _mm512_dpbusd_epi32
#undef _mm256_dpbusd_avx_epi32
#undef _mm512_roundscale_ps
#undef _mm512_scalef_ps
#undef _mm512_reduce_add_ps
#undef _mm512_reduce_max_ps
#undef _mm512_reduce_add_epi32
#undef _mm512_mullo_epi32
#undef _mm512_unpacklo_epi32
#undef _mm512_unpackhi_epi32
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtepi16_epi32 emulated_cvtepi16_epi32
#define _mm512_cvtepi8_epi32 emulated_cvtepi8_epi32
#define _mm512_cvtepu8_epi32 emulated_cvtepu8_epi32
#define _mm512_cvtepi8_epi16 emulated_cvtepi8_epi16
#define _mm512_cvtepu8_epi16 emulated_cvtepu8_epi16
#define _mm512_cmplt_epu16_mask emulated_cmplt_epu16_mask
#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
#define _mm512_cvtsepi32_epi8 emulated_cvtsepi32_epi8
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_cvtps_ph(a, rounding) emulated_cvtps_ph(a)
#define _mm512_cvtneps_pbh emulated_cvtneps_pbh
#define _mm512_cvtne2ps_pbh emulated_cvtne2ps_pbh
#define _mm512_dpbf16_ps(sum, a, b) \
  emulated_dpbf16_ps(sum, emulated_bits<__m512i>(a), emulated_bits<__m512i>(b))
#define _mm512_dpbusd_epi32 emulated_dpbusd_epi32
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd_epi32
#define _mm512_roundscale_ps(a, operation) emulated_roundscale_ps<operation>(a)
#define _mm512_scalef_ps emulated_scalef_ps
#define _mm512_reduce_add_ps emulated_reduce_add_ps
#define _mm512_reduce_max_ps emulated_reduce_max_ps
#define _mm512_reduce_add_epi32 emulated_reduce_add_epi32
#define _mm512_mullo_epi32 emulated_mul_epi32_low
#define _mm512_unpacklo_epi32(a, b) emulated_unpack(a, b, 0)
#define _mm512_unpackhi_epi32(a, b) emulated_unpack(a, b, 2)
