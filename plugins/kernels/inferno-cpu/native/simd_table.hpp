// Values of 4-bit codes, looked up in registers as pairs of bf16.
#pragma once
#include "simd.hpp"

// The values times a factor, in bfloat16, whose inverse is `inverse`.
struct Table {
  alignas(64) uint16_t words[32] = {};  // twice
  alignas(16) uint8_t low[16] = {}, high[16] = {};
  float inverse;
  constexpr Table(float inverse, const uint16_t (&values)[16]) : inverse(inverse) {
    for (int i = 0; i < 16; i++) {
      words[i] = words[16 + i] = values[i];
      low[i] = uint8_t(values[i]);
      high[i] = uint8_t(values[i] >> 8);
    }
  }
};

namespace {

#if defined(INFERNO_AVX512)

INL void look_up_pairs(const Table& table, const uint8_t* codes, Pairs (&v)[4]) {
  __m512i x = load_line(codes), words = _mm512_load_si512(table.words);
  UNROLL_FOR (int i = 0; i < 4; i++)  // the lowest 5 bits of each word count
    v[i] = _mm512_permutexvar_epi16(_mm512_srli_epi16(x, unsigned(4 * i)), words);
}

#else

// even_bytes(a, b) and odd_bytes(a, b): in each two bytes one of a, then that of b.
#if defined(INFERNO_AVX2)
INL __m256i even_bytes(__m256i a, __m256i b) {
  return _mm256_or_si256(_mm256_and_si256(a, _mm256_set1_epi16(0xff)), _mm256_slli_epi16(b, 8));
}
INL __m256i odd_bytes(__m256i a, __m256i b) {
  return _mm256_or_si256(_mm256_srli_epi16(a, 8),
                         _mm256_and_si256(b, _mm256_set1_epi16(int16_t(0xff00))));
}
INL Pairs even_bytes(B64 a, B64 b) { return {even_bytes(a.lo, b.lo), even_bytes(a.hi, b.hi)}; }
INL Pairs odd_bytes(B64 a, B64 b) { return {odd_bytes(a.lo, b.lo), odd_bytes(a.hi, b.hi)}; }
#elif defined(INFERNO_SSE42)
INL __m128i even_bytes(__m128i x, __m128i y) {
  return _mm_or_si128(_mm_and_si128(x, _mm_set1_epi16(0xff)), _mm_slli_epi16(y, 8));
}
INL __m128i odd_bytes(__m128i x, __m128i y) {
  return _mm_or_si128(_mm_srli_epi16(x, 8), _mm_and_si128(y, _mm_set1_epi16(int16_t(0xff00))));
}
INL Pairs even_bytes(B64 x, B64 y) {
  return {even_bytes(x.a, y.a), even_bytes(x.b, y.b), even_bytes(x.c, y.c), even_bytes(x.d, y.d)};
}
INL Pairs odd_bytes(B64 x, B64 y) {
  return {odd_bytes(x.a, y.a), odd_bytes(x.b, y.b), odd_bytes(x.c, y.c), odd_bytes(x.d, y.d)};
}
#elif defined(INFERNO_SVE256)
INL Pairs even_bytes(B64 x, B64 y) {
  return {svreinterpret_u32_u8(svtrn1_u8(x.lo, y.lo)), svreinterpret_u32_u8(svtrn1_u8(x.hi, y.hi))};
}
INL Pairs odd_bytes(B64 x, B64 y) {
  return {svreinterpret_u32_u8(svtrn2_u8(x.lo, y.lo)), svreinterpret_u32_u8(svtrn2_u8(x.hi, y.hi))};
}
#elif defined(INFERNO_NEON)
INL uint32x4_t even_bytes(uint8x16_t x, uint8x16_t y) {
  return vreinterpretq_u32_u8(vtrn1q_u8(x, y));
}
INL uint32x4_t odd_bytes(uint8x16_t x, uint8x16_t y) {
  return vreinterpretq_u32_u8(vtrn2q_u8(x, y));
}
INL Pairs even_bytes(B64 x, B64 y) {
  return {even_bytes(x.a, y.a), even_bytes(x.b, y.b), even_bytes(x.c, y.c), even_bytes(x.d, y.d)};
}
INL Pairs odd_bytes(B64 x, B64 y) {
  return {odd_bytes(x.a, y.a), odd_bytes(x.b, y.b), odd_bytes(x.c, y.c), odd_bytes(x.d, y.d)};
}
#else
INL Pairs even_bytes(B64 a, B64 b) { return (a & 0x00ff00ffu) | ((b << 8) & 0xff00ff00u); }
INL Pairs odd_bytes(B64 a, B64 b) { return ((a >> 8) & 0x00ff00ffu) | (b & 0xff00ff00u); }
#endif

// v[i] = the values of nibbles i of the two halves of each lane of four bytes.
INL void look_up_pairs(const Table& table, const uint8_t* codes, Pairs (&v)[4]) {
  B64 x = load_line(codes);
  UNROLL_FOR (int i = 0; i < 2; i++) {
    B64 at = bits(x, -4 * i, 15), low = look_up(table.low, at), high = look_up(table.high, at);
    v[i] = even_bytes(low, high), v[2 + i] = odd_bytes(low, high);
  }
}

#endif

}  // namespace
