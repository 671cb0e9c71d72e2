// Sixteen lanes in four SSE registers, for SSE4.2 without FMA and F16C; see ../simd.hpp for what
// each name means.
#pragma once

struct F32 { __m128 a, b, c, d; };
struct I32 { __m128i a, b, c, d; };

// The vector of f(part of x), of f(part of x, part of y).
#define MAP(f, x) {f((x).a), f((x).b), f((x).c), f((x).d)}
#define MAP2(f, x, y) {f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)}
#define SAME(x) {x, x, x, x}

INL F32 operator+(F32 x, F32 y) { return MAP2(_mm_add_ps, x, y); }
INL F32 operator-(F32 x, F32 y) { return MAP2(_mm_sub_ps, x, y); }
INL F32 operator*(F32 x, F32 y) { return MAP2(_mm_mul_ps, x, y); }
INL F32 operator/(F32 x, F32 y) { return MAP2(_mm_div_ps, x, y); }

INL F32 splat(float x) {
  __m128 v = _mm_set1_ps(x);
  return SAME(v);
}
INL I32 splat(int32_t x) {
  __m128i v = _mm_set1_epi32(x);
  return SAME(v);
}
INL __m128i eight_bytes(const void* p) { return _mm_loadl_epi64((const __m128i*)p); }
INL __m128i four_bytes(const void* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return _mm_cvtsi32_si128(x);
}
INL F32 load(const float* p) {
  return {_mm_loadu_ps(p), _mm_loadu_ps(p + 4), _mm_loadu_ps(p + 8), _mm_loadu_ps(p + 12)};
}
INL __m128 widen4(const bf16* p) {
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(eight_bytes(p)), 16));
}
INL F32 load(const bf16* p) { return {widen4(p), widen4(p + 4), widen4(p + 8), widen4(p + 12)}; }
// float16 in the lower halves of the lanes. A subnormal one becomes 2^-14 (1 + its mantissa), from
// which 2^-14 is subtracted: float32's own subnormal numbers are slow.
INL __m128 from_halves(__m128i x) {
  __m128i magnitude = _mm_slli_epi32(_mm_and_si128(x, _mm_set1_epi32(0x7fff)), 13);
  __m128i sign = _mm_slli_epi32(_mm_and_si128(x, _mm_set1_epi32(0x8000)), 16);
  __m128i bias = _mm_set1_epi32(112 << 23);
  __m128i special = _mm_and_si128(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x0f7fffff)), bias);
  __m128i normal = _mm_add_epi32(_mm_add_epi32(magnitude, bias), special);
  __m128i least = _mm_set1_epi32(113 << 23);  // 2^-14
  __m128 subnormal =
      _mm_sub_ps(_mm_castsi128_ps(_mm_add_epi32(magnitude, least)), _mm_castsi128_ps(least));
  __m128i small = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(1 << 23));
  __m128 value = _mm_blendv_ps(_mm_castsi128_ps(normal), subnormal, _mm_castsi128_ps(small));
  return _mm_or_ps(value, _mm_castsi128_ps(sign));
}
INL __m128 widen4(const f16* p) { return from_halves(_mm_cvtepu16_epi32(eight_bytes(p))); }
INL F32 load(const f16* p) { return {widen4(p), widen4(p + 4), widen4(p + 8), widen4(p + 12)}; }
INL I32 load(const int32_t* p) {
  const __m128i* v = (const __m128i*)p;
  return {_mm_loadu_si128(v), _mm_loadu_si128(v + 1), _mm_loadu_si128(v + 2),
          _mm_loadu_si128(v + 3)};
}
INL I32 load(const int8_t* p) {
  return {_mm_cvtepi8_epi32(four_bytes(p)), _mm_cvtepi8_epi32(four_bytes(p + 4)),
          _mm_cvtepi8_epi32(four_bytes(p + 8)), _mm_cvtepi8_epi32(four_bytes(p + 12))};
}
INL I32 load(const uint8_t* p) {
  return {_mm_cvtepu8_epi32(four_bytes(p)), _mm_cvtepu8_epi32(four_bytes(p + 4)),
          _mm_cvtepu8_epi32(four_bytes(p + 8)), _mm_cvtepu8_epi32(four_bytes(p + 12))};
}
INL void store(float* p, F32 x) {
  _mm_storeu_ps(p, x.a), _mm_storeu_ps(p + 4, x.b);
  _mm_storeu_ps(p + 8, x.c), _mm_storeu_ps(p + 12, x.d);
}
INL void store(int32_t* p, I32 x) {
  __m128i* v = (__m128i*)p;
  _mm_storeu_si128(v, x.a), _mm_storeu_si128(v + 1, x.b);
  _mm_storeu_si128(v + 2, x.c), _mm_storeu_si128(v + 3, x.d);
}
INL __m128i narrow4(__m128 x) {  // bf16, to nearest even; NaN stays NaN
  __m128i u = _mm_castps_si128(x), high = _mm_srli_epi32(u, 16);
  __m128i odd = _mm_and_si128(high, _mm_set1_epi32(1));
  __m128i rounded =
      _mm_srli_epi32(_mm_add_epi32(u, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff))), 16);
  __m128i quiet = _mm_or_si128(high, _mm_set1_epi32(0x40));
  return _mm_blendv_epi8(rounded, quiet, _mm_castps_si128(_mm_cmpunord_ps(x, x)));
}
INL void store(bf16* p, F32 x) {
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi32(narrow4(x.a), narrow4(x.b)));
  _mm_storeu_si128((__m128i*)(p + 8), _mm_packus_epi32(narrow4(x.c), narrow4(x.d)));
}
INL void store(f16* p, F32 x) {
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < 16; i++) from_float(p + i, lanes[i]);
}
INL F32 fma(F32 x, F32 y, F32 z) { return x * y + z; }
INL F32 max(F32 x, F32 y) { return MAP2(_mm_max_ps, x, y); }
INL F32 min(F32 x, F32 y) { return MAP2(_mm_min_ps, x, y); }
INL __m128 abs4(__m128 x) { return _mm_andnot_ps(_mm_set1_ps(-0.0f), x); }
INL F32 abs(F32 x) { return MAP(abs4, x); }
INL I32 add(I32 x, I32 y) { return MAP2(_mm_add_epi32, x, y); }
INL F32 to_f32(I32 x) { return MAP(_mm_cvtepi32_ps, x); }
INL I32 round_i32(F32 x) { return MAP(_mm_cvtps_epi32, x); }
INL __m128 round4(__m128 x) { return _mm_round_ps(x, 8); }
INL F32 round_f32(F32 x) { return MAP(round4, x); }
INL __m128 times_pow2(__m128 x, __m128 n) {
  __m128i exponent = _mm_add_epi32(_mm_cvtps_epi32(n), _mm_set1_epi32(127));
  return _mm_mul_ps(x, _mm_castsi128_ps(_mm_slli_epi32(exponent, 23)));
}
INL F32 times_pow2(F32 x, F32 n) { return MAP2(times_pow2, x, n); }
INL float sum(F32 x) {
  __m128 s = _mm_add_ps(_mm_add_ps(x.a, x.c), _mm_add_ps(x.b, x.d));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INL float largest(F32 x) {
  __m128 s = _mm_max_ps(_mm_max_ps(x.a, x.c), _mm_max_ps(x.b, x.d));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

struct Pairs { __m128i a, b, c, d; };
INL Pairs load_pairs(const bf16* p) {
  I32 v = load((const int32_t*)p);
  return {v.a, v.b, v.c, v.d};
}
INL Pairs splat_pair(uint32_t pair) {
  __m128i v = _mm_set1_epi32(int32_t(pair));
  return SAME(v);
}
INL __m128 first4(__m128i x) { return _mm_castsi128_ps(_mm_slli_epi32(x, 16)); }
INL __m128 second4(__m128i x) {
  return _mm_castsi128_ps(_mm_and_si128(x, _mm_set1_epi32(int32_t(0xffff0000))));
}
INL F32 first(Pairs x) { return MAP(first4, x); }
INL F32 second(Pairs x) { return MAP(second4, x); }
INL F32 dot2(F32 sum, Pairs x, Pairs y) {
  return fma(first(x), first(y), fma(second(x), second(y), sum));
}
INL void compute_now(F32& x) { asm("" : "+x"(x.a), "+x"(x.b), "+x"(x.c), "+x"(x.d)); }

INL void transpose4(const char* rows, int64_t row_bytes, char* to) {  // four columns of four rows
  __m128 r[4];
  UNROLL_FOR (int i = 0; i < 4; i++) r[i] = _mm_loadu_ps((const float*)(rows + i * row_bytes));
  _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
  UNROLL_FOR (int i = 0; i < 4; i++) _mm_stream_ps((float*)(to + i * 64), r[i]);
}
INL void transpose(const char* rows, int64_t row_bytes, char* to) {
  UNROLL_FOR (int r = 0; r < 16; r += 4) {
    transpose4(rows + r * row_bytes, row_bytes, to + r * 4);
    transpose4(rows + r * row_bytes + 16, row_bytes, to + 4 * 64 + r * 4);
  }
}
INL void end_of_stores() { _mm_sfence(); }

// ---- bytes ----

struct B64 { __m128i a, b, c, d; };
using Four = __m128i;

INL B64 load_bytes(const uint8_t* p) {
  I32 v = load((const int32_t*)p);
  return {v.a, v.b, v.c, v.d};
}
INL B64 load_line(const uint8_t* p) { return load_bytes(p); }
INL void store_bytes(uint8_t* p, B64 v) { store((int32_t*)p, {v.a, v.b, v.c, v.d}); }
INL __m128i bits(__m128i v, int n, uint8_t mask) {
  return _mm_and_si128(n > 0   ? _mm_slli_epi16(v, n)
                       : n < 0 ? _mm_srli_epi16(v, -n)
                               : v,
                       _mm_set1_epi8(char(mask)));
}
INL B64 bits(B64 v, int n, uint8_t mask) {
  return {bits(v.a, n, mask), bits(v.b, n, mask), bits(v.c, n, mask), bits(v.d, n, mask)};
}
INL B64 either(B64 x, B64 y) { return MAP2(_mm_or_si128, x, y); }
INL B64 look_up(const uint8_t* table, B64 v) {
  __m128i t = _mm_load_si128((const __m128i*)table);
  return {_mm_shuffle_epi8(t, v.a), _mm_shuffle_epi8(t, v.b), _mm_shuffle_epi8(t, v.c),
          _mm_shuffle_epi8(t, v.d)};
}
INL __m128 powers4(__m128i x) {
  return _mm_castsi128_ps(_mm_max_epi32(_mm_slli_epi32(x, 23), _mm_set1_epi32(0x00400000)));
}
INL F32 load_powers(const uint8_t* p) {
  I32 x = load(p);
  return MAP(powers4, x);
}
INL Four load_four(const uint8_t* p) { return _mm_shuffle_epi32(four_bytes(p), 0); }
INL I32 magnitude_bits(F32 x) {
  F32 m = abs(x);
  return MAP(_mm_castps_si128, m);
}
INL I32 max_i32(I32 x, I32 y) { return MAP2(_mm_max_epi32, x, y); }
INL int32_t largest_i32(I32 x) {
  __m128i s = _mm_max_epi32(_mm_max_epi32(x.a, x.b), _mm_max_epi32(x.c, x.d));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
INL int32_t sum_i32(I32 x) {
  __m128i s = _mm_add_epi32(_mm_add_epi32(x.a, x.b), _mm_add_epi32(x.c, x.d));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
INL void store_int8(uint8_t* p, I32 x) {
  __m128i low = _mm_packs_epi32(x.a, x.b), high = _mm_packs_epi32(x.c, x.d);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(low, high));
}

// Products summed in 16 bits, kRun pairs at a time: see avx2.hpp.
template <int BITS>
struct Dot {
  struct Acc { __m128i a, b, c, d; };
  static constexpr int kRun = BITS <= 4 ? 8 : BITS == 5 ? 4 : 2;
  static_assert(kRun * 2 * ((1 << BITS) - 1) * 127 <= 32767, "sums of 16 bits");
  static constexpr bool kSigned = false;
  INL B64 code(B64 v) { return v; }
  INL Acc start(int32_t) {
    __m128i zero = _mm_setzero_si128();
    return SAME(zero);
  }
  INL __m128i add(__m128i sum, __m128i w, Four x) {
    return _mm_add_epi16(sum, _mm_maddubs_epi16(w, x));
  }
  INL Acc add(Acc s, B64 w, Four x) {
    return {add(s.a, w.a, x), add(s.b, w.b, x), add(s.c, w.c, x), add(s.d, w.d, x)};
  }
  INL __m128i total(__m128i sum) { return _mm_madd_epi16(sum, _mm_set1_epi16(1)); }
  INL I32 total(Acc s, int32_t first) { return ::add(MAP(total, s), splat(first)); }
};

// Eight bits: |w| times x with the sign of w, as in avx2.hpp.
template <>
struct Dot<8> {
  using Acc = I32;
  static constexpr int kRun = 8;
  static constexpr bool kSigned = true;
  INL __m128i code(__m128i v) { return _mm_xor_si128(v, _mm_set1_epi8(char(0x80))); }
  INL B64 code(B64 v) { return MAP(code, v); }
  INL Acc start(int32_t) { return splat(int32_t(0)); }
  INL __m128i add(__m128i sum, __m128i w, Four x) {
    __m128i pairs = _mm_maddubs_epi16(_mm_abs_epi8(w), _mm_sign_epi8(x, w));
    return _mm_add_epi32(sum, _mm_madd_epi16(pairs, _mm_set1_epi16(1)));
  }
  INL Acc add(Acc s, B64 w, Four x) {
    return {add(s.a, w.a, x), add(s.b, w.b, x), add(s.c, w.c, x), add(s.d, w.d, x)};
  }
  INL I32 total(Acc s, int32_t) { return s; }
};

// ---- attention ----

INL Pairs load_pairs(const int16_t* p) { return load_pairs((const bf16*)p); }
INL Pairs load_pairs(const int8_t* p) {
  return {_mm_cvtepi8_epi16(eight_bytes(p)), _mm_cvtepi8_epi16(eight_bytes(p + 8)),
          _mm_cvtepi8_epi16(eight_bytes(p + 16)), _mm_cvtepi8_epi16(eight_bytes(p + 24))};
}
INL __m128i fp8_as_bf16(__m128i x) {  // the sign is in the top bits
  return _mm_and_si128(_mm_slli_epi16(x, 4), _mm_set1_epi16(int16_t(0x87f0)));
}
INL Pairs load_pairs(const fp8* p) {
  Pairs x = load_pairs((const int8_t*)p);
  return MAP(fp8_as_bf16, x);
}
INL void store_pairs(void* p, Pairs x) { store((int32_t*)p, {x.a, x.b, x.c, x.d}); }
INL __m128i dot2(__m128i sum, __m128i x, __m128i y) {
  return _mm_add_epi32(sum, _mm_madd_epi16(x, y));
}
INL I32 dot2(I32 sum, Pairs x, Pairs y) {
  return {dot2(sum.a, x.a, y.a), dot2(sum.b, x.b, y.b), dot2(sum.c, x.c, y.c),
          dot2(sum.d, x.d, y.d)};
}
INL void store(int16_t* p, I32 x) {
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi32(x.a, x.b));
  _mm_storeu_si128((__m128i*)(p + 8), _mm_packs_epi32(x.c, x.d));
}
INL __m128 keep4(__m128 x, __m128 y, int first, int stop) {
  __m128i i = _mm_setr_epi32(0, 1, 2, 3);
  __m128i lanes = _mm_andnot_si128(_mm_cmplt_epi32(i, _mm_set1_epi32(first)),
                                   _mm_cmplt_epi32(i, _mm_set1_epi32(stop)));
  return _mm_blendv_ps(y, x, _mm_castsi128_ps(lanes));
}
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  int from = int(min(max(first, 0), 16)), to = int(min(max(stop, 0), 16));
  return {keep4(x.a, y.a, from, to), keep4(x.b, y.b, from - 4, to - 4),
          keep4(x.c, y.c, from - 8, to - 8), keep4(x.d, y.d, from - 12, to - 12)};
}

#undef MAP
#undef MAP2
#undef SAME
