// Sixteen lanes in two SVE registers of 256 bits, with the matrix product of bytes and the dot
// product of bfloat16 (Graviton 3). Half the registers of NEON for the same lanes, so that tiles
// hold twice the tokens. The compiler's -msve-vector-bits=256 fixes the length; levels.cpp checks
// the processor's.
#pragma once
#include <arm_sve.h>

#define INFERNO_FIXED(name, type) typedef type name __attribute__((arm_sve_vector_bits(256)))
INFERNO_FIXED(F32x8, svfloat32_t);
INFERNO_FIXED(I32x8, svint32_t);
INFERNO_FIXED(U32x8, svuint32_t);
INFERNO_FIXED(U8x32, svuint8_t);
INFERNO_FIXED(I8x32, svint8_t);
#undef INFERNO_FIXED

struct F32 { F32x8 lo, hi; };
struct I32 { I32x8 lo, hi; };

#define ALL svptrue_b32()
#define OF_ONE(name, R, A, f) \
  INL R name(A x) { return {f(ALL, x.lo), f(ALL, x.hi)}; }
#define OF_TWO(name, R, A, f) \
  INL R name(A x, A y) { return {f(ALL, x.lo, y.lo), f(ALL, x.hi, y.hi)}; }

OF_TWO(operator+, F32, F32, svadd_f32_x)
OF_TWO(operator-, F32, F32, svsub_f32_x)
OF_TWO(operator*, F32, F32, svmul_f32_x)
OF_TWO(operator/, F32, F32, svdiv_f32_x)
OF_TWO(add, I32, I32, svadd_s32_x)

INL F32 splat(float x) { return {svdup_f32(x), svdup_f32(x)}; }
INL I32 splat(int32_t x) { return {svdup_s32(x), svdup_s32(x)}; }

INL F32 load(const float* p) { return {svld1_f32(ALL, p), svld1_f32(ALL, p + 8)}; }
INL F32x8 widen(const bf16* p) {
  return svreinterpret_f32_u32(svlsl_n_u32_x(ALL, svld1uh_u32(ALL, (const uint16_t*)p), 16));
}
INL F32 load(const bf16* p) { return {widen(p), widen(p + 8)}; }
// A float16 is converted from the lower half of each lane.
INL F32x8 widen(svuint32_t halves) { return svcvt_f32_f16_x(ALL, svreinterpret_f16_u32(halves)); }
INL F32 load(const f16* p) {
  return {widen(svld1uh_u32(ALL, (const uint16_t*)p)),
          widen(svld1uh_u32(ALL, (const uint16_t*)p + 8))};
}
INL I32 load(const int32_t* p) { return {svld1_s32(ALL, p), svld1_s32(ALL, p + 8)}; }
INL I32 load(const int8_t* p) { return {svld1sb_s32(ALL, p), svld1sb_s32(ALL, p + 8)}; }
INL I32 load(const uint8_t* p) { return {svld1ub_s32(ALL, p), svld1ub_s32(ALL, p + 8)}; }

INL void store(float* p, F32 x) { svst1_f32(ALL, p, x.lo), svst1_f32(ALL, p + 8, x.hi); }
INL void store(int32_t* p, I32 x) { svst1_s32(ALL, p, x.lo), svst1_s32(ALL, p + 8, x.hi); }
INL void store(bf16* p, F32 x) {
  auto narrow = [](F32x8 v) { return svreinterpret_u32_bf16(svcvt_bf16_f32_x(ALL, v)); };
  svst1h_u32(ALL, (uint16_t*)p, narrow(x.lo)), svst1h_u32(ALL, (uint16_t*)p + 8, narrow(x.hi));
}
INL void store(f16* p, F32 x) {
  auto narrow = [](F32x8 v) { return svreinterpret_u32_f16(svcvt_f16_f32_x(ALL, v)); };
  svst1h_u32(ALL, (uint16_t*)p, narrow(x.lo)), svst1h_u32(ALL, (uint16_t*)p + 8, narrow(x.hi));
}

INL F32x8 max8(svbool_t all, F32x8 x, F32x8 y) { return svsel_f32(svcmpgt_f32(all, x, y), x, y); }
INL F32x8 min8(svbool_t all, F32x8 x, F32x8 y) { return svsel_f32(svcmplt_f32(all, x, y), x, y); }
OF_TWO(max, F32, F32, max8)
OF_TWO(min, F32, F32, min8)
OF_ONE(abs, F32, F32, svabs_f32_x)
OF_ONE(to_f32, F32, I32, svcvt_f32_s32_x)
OF_ONE(round_f32, F32, F32, svrintn_f32_x)
INL I32x8 round8(svbool_t all, F32x8 x) { return svcvt_s32_f32_x(all, svrintn_f32_x(all, x)); }
OF_ONE(round_i32, I32, F32, round8)
INL F32 fma(F32 x, F32 y, F32 z) {
  return {svmla_f32_x(ALL, z.lo, x.lo, y.lo), svmla_f32_x(ALL, z.hi, x.hi, y.hi)};
}
INL F32x8 times_pow2_8(svbool_t all, F32x8 x, F32x8 n) {
  return svscale_f32_x(all, x, svcvt_s32_f32_x(all, n));
}
OF_TWO(times_pow2, F32, F32, times_pow2_8)
INL float sum(F32 x) { return svaddv_f32(ALL, svadd_f32_x(ALL, x.lo, x.hi)); }
INL float largest(F32 x) { return svmaxnmv_f32(ALL, svmaxnm_f32_x(ALL, x.lo, x.hi)); }
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  auto select = [](F32x8 inside, F32x8 outside, int64_t from, int64_t to) {
    svbool_t below = svwhilelt_b32_s64(0, to), before = svwhilelt_b32_s64(0, from);
    return svsel_f32(svbic_b_z(ALL, below, before), inside, outside);
  };
  return {select(x.lo, y.lo, first, stop), select(x.hi, y.hi, first - 8, stop - 8)};
}
INL void compute_now(F32& x) { asm("" : "+w"(x.lo), "+w"(x.hi)); }

// ---- pairs of bf16 ----

struct Pairs { U32x8 lo, hi; };
INL Pairs load_pairs(const bf16* p) {
  const uint32_t* u = (const uint32_t*)p;
  return {svld1_u32(ALL, u), svld1_u32(ALL, u + 8)};
}
INL Pairs splat_pair(uint32_t pair) { return {svdup_u32(pair), svdup_u32(pair)}; }
INL F32 first(Pairs x) {
  return {svreinterpret_f32_u32(svlsl_n_u32_x(ALL, x.lo, 16)),
          svreinterpret_f32_u32(svlsl_n_u32_x(ALL, x.hi, 16))};
}
INL F32 second(Pairs x) {
  return {svreinterpret_f32_u32(svand_n_u32_x(ALL, x.lo, 0xffff0000)),
          svreinterpret_f32_u32(svand_n_u32_x(ALL, x.hi, 0xffff0000))};
}
INL F32 dot2(F32 sum, Pairs x, Pairs y) {
  return {svbfdot_f32(sum.lo, svreinterpret_bf16_u32(x.lo), svreinterpret_bf16_u32(y.lo)),
          svbfdot_f32(sum.hi, svreinterpret_bf16_u32(x.hi), svreinterpret_bf16_u32(y.hi))};
}
INL void store_pairs(void* p, Pairs x) {
  svst1_u32(ALL, (uint32_t*)p, x.lo), svst1_u32(ALL, (uint32_t*)p + 8, x.hi);
}
INL Pairs load_pairs(const int16_t* p) { return load_pairs((const bf16*)p); }
INL U32x8 widen(const int8_t* p) { return svreinterpret_u32_s16(svld1sb_s16(svptrue_b16(), p)); }
INL Pairs load_pairs(const int8_t* p) { return {widen(p), widen(p + 16)}; }
INL Pairs load_pairs(const fp8* p) {
  Pairs x = load_pairs((const int8_t*)p);  // the sign is in the top bits
  x.lo = svand_n_u32_x(ALL, svlsl_n_u32_x(ALL, x.lo, 4), 0x87f087f0);
  x.hi = svand_n_u32_x(ALL, svlsl_n_u32_x(ALL, x.hi, 4), 0x87f087f0);
  return x;
}
INL Pairs load_values(const fp8* p) {
  static const uint16_t kSubnormal[16] = {0,      0x3b00, 0x3b80, 0x3bc0,
                                          0x3c00, 0x3c20, 0x3c40, 0x3c60};
  svbool_t all = svptrue_b16();
  auto values = [&](const uint8_t* at) {
    svuint16_t x = svld1ub_u16(all, at), magnitude = svand_n_u16_x(all, x, 0x7f);
    svuint16_t normal = svadd_n_u16_x(all, svlsl_n_u16_x(all, magnitude, 4), 0x3c00);
    svuint16_t small = svtbl_u16(svld1_u16(all, kSubnormal), magnitude);
    svuint16_t value = svsel_u16(svcmplt_n_u16(all, magnitude, 8), small, normal);
    svuint16_t sign = svlsl_n_u16_x(all, svand_n_u16_x(all, x, 0x80), 8);
    return svreinterpret_u32_u16(svorr_u16_x(all, value, sign));
  };
  return {values((const uint8_t*)p), values((const uint8_t*)p + 16)};
}
INL I32x8 dot2_8(I32x8 sum, U32x8 x, U32x8 y) {
  svint32_t u = svreinterpret_s32_u32(x), v = svreinterpret_s32_u32(y);
  sum = svmla_s32_x(ALL, sum, svexth_s32_x(ALL, u), svexth_s32_x(ALL, v));
  return svmla_s32_x(ALL, sum, svasr_n_s32_x(ALL, u, 16), svasr_n_s32_x(ALL, v, 16));
}
INL I32 dot2(I32 sum, Pairs x, Pairs y) {
  return {dot2_8(sum.lo, x.lo, y.lo), dot2_8(sum.hi, x.hi, y.hi)};
}
INL void store(int16_t* p, I32 x) { svst1h_s32(ALL, p, x.lo), svst1h_s32(ALL, p + 8, x.hi); }

// ---- bytes ----

struct B64 { U8x32 lo, hi; };
using Four = I8x32;

INL B64 load_bytes(const uint8_t* p) {
  return {svld1_u8(svptrue_b8(), p), svld1_u8(svptrue_b8(), p + 32)};
}
INL B64 load_line(const uint8_t* p) { return load_bytes(p); }
INL void store_bytes(uint8_t* p, B64 v) {
  svst1_u8(svptrue_b8(), p, v.lo), svst1_u8(svptrue_b8(), p + 32, v.hi);
}
INL U8x32 bits32(U8x32 v, int n, uint8_t mask) {
  svbool_t all = svptrue_b8();
  if (n > 0) v = svlsl_n_u8_x(all, v, uint8_t(n));
  if (n < 0) v = svlsr_n_u8_x(all, v, uint8_t(-n));
  if (n < 0 && mask == 0xff >> -n) return v;  // bytes shift on their own
  return svand_n_u8_x(all, v, mask);
}
INL B64 bits(B64 v, int n, uint8_t mask) { return {bits32(v.lo, n, mask), bits32(v.hi, n, mask)}; }
INL B64 either(B64 x, B64 y) {
  return {svorr_u8_x(svptrue_b8(), x.lo, y.lo), svorr_u8_x(svptrue_b8(), x.hi, y.hi)};
}
INL B64 look_up(const uint8_t* table, B64 v) {
  U8x32 t = svld1rq_u8(svptrue_b8(), table);
  return {svtbl_u8(t, v.lo), svtbl_u8(t, v.hi)};
}
INL F32x8 powers8(svbool_t all, I32x8 x) {
  return svreinterpret_f32_s32(svmax_n_s32_x(all, svlsl_n_s32_x(all, x, 23), 0x00400000));
}
OF_ONE(powers, F32, I32, powers8)
INL F32 load_powers(const uint8_t* p) { return powers(load(p)); }
INL Four load_four(const uint8_t* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return svreinterpret_s8_s32(svdup_s32(x));
}
INL I32 magnitude_bits(F32 x) {
  F32 m = abs(x);
  return {svreinterpret_s32_f32(m.lo), svreinterpret_s32_f32(m.hi)};
}
OF_TWO(max_i32, I32, I32, svmax_s32_x)
INL int32_t largest_i32(I32 x) { return svmaxv_s32(ALL, svmax_s32_x(ALL, x.lo, x.hi)); }
INL int32_t sum_i32(I32 x) { return int32_t(svaddv_s32(ALL, svadd_s32_x(ALL, x.lo, x.hi))); }
INL void store_int8(uint8_t* p, I32 x) {
  svst1b_s32(ALL, (int8_t*)p, x.lo), svst1b_s32(ALL, (int8_t*)p + 8, x.hi);
}

template <int BITS>
struct Dot {  // unsigned times signed bytes
  using Acc = I32;
  static constexpr int kRun = 8;
  static constexpr bool kSigned = false;
  INL B64 code(B64 v) { return v; }
  INL Acc start(int32_t first) { return splat(first); }
  INL Acc add(Acc a, B64 w, Four x) {
    return {svusdot_s32(a.lo, w.lo, x), svusdot_s32(a.hi, w.hi, x)};
  }
  INL I32 total(Acc a, int32_t) { return a; }
};

// ---- eight columns of two tokens ----

struct Eights { B64 low, high; };    // eight codes of each lane, in order
struct PairSums { I32 low, high; };  // of two tokens, alternating: lanes 0 to 7, 8 to 15
INL U8x32 zip_low(U8x32 x, U8x32 y) {
  return svreinterpret_u8_u32(svzip1_u32(svreinterpret_u32_u8(x), svreinterpret_u32_u8(y)));
}
INL U8x32 zip_high(U8x32 x, U8x32 y) {
  return svreinterpret_u8_u32(svzip2_u32(svreinterpret_u32_u8(x), svreinterpret_u32_u8(y)));
}
INL Eights interleave(B64 x, B64 y) {
  return {{zip_low(x.lo, y.lo), zip_high(x.lo, y.lo)}, {zip_low(x.hi, y.hi), zip_high(x.hi, y.hi)}};
}
INL B64 interleave(const uint8_t* p, const uint8_t* q) {  // of eight lanes, from 32 bytes of each
  U8x32 a = svld1_u8(svptrue_b8(), p), b = svld1_u8(svptrue_b8(), q);
  return {zip_low(a, b), zip_high(a, b)};
}
// Two fours of two tokens, each token's together.
INL I8x32 load_eights(const uint8_t* first, const uint8_t* second) {
  uint64_t x, y;
  memcpy(&x, first, 8), memcpy(&y, second, 8);
  return svreinterpret_s8_u8(
      zip_low(svreinterpret_u8_u64(svdup_u64(x)), svreinterpret_u8_u64(svdup_u64(y))));
}
INL PairSums start_pair(int32_t first, int32_t second) {
  I32x8 v = svzip1_s32(svdup_s32(first), svdup_s32(second));
  return {{v, v}, {v, v}};
}
INL I32 multiply_eights(I32 sum, B64 w, I8x32 x) {
  return {svusmmla_s32(sum.lo, w.lo, x), svusmmla_s32(sum.hi, w.hi, x)};
}
INL I32 first(PairSums s) {
  return {svuzp1_s32(s.low.lo, s.low.hi), svuzp1_s32(s.high.lo, s.high.hi)};
}
INL I32 second(PairSums s) {
  return {svuzp2_s32(s.low.lo, s.low.hi), svuzp2_s32(s.high.lo, s.high.hi)};
}

struct FloatPairs { F32 low, high; };
INL F32 multiply_eights(F32 sum, B64 w, I8x32 x) {  // eight bytes are four bf16
  svbfloat16_t four = svreinterpret_bf16_s8(x);
  return {svbfmmla_f32(sum.lo, svreinterpret_bf16_u8(w.lo), four),
          svbfmmla_f32(sum.hi, svreinterpret_bf16_u8(w.hi), four)};
}
INL F32 first(FloatPairs s) {
  return {svuzp1_f32(s.low.lo, s.low.hi), svuzp1_f32(s.high.lo, s.high.hi)};
}
INL F32 second(FloatPairs s) {
  return {svuzp2_f32(s.low.lo, s.low.hi), svuzp2_f32(s.high.lo, s.high.hi)};
}

// ---- transposition ----

// Eight rows to the lower halves, by exchanges of ever larger neighbours.
INL void transpose8(const char* rows, int64_t row_bytes, char* to) {
  svuint32_t x0, x1, x2, x3, x4, x5, x6, x7;
  auto row = [&](int r) { return svld1_u32(ALL, (const uint32_t*)(rows + r * row_bytes)); };
  x0 = row(0), x1 = row(1), x2 = row(2), x3 = row(3);
  x4 = row(4), x5 = row(5), x6 = row(6), x7 = row(7);
  // Lanes of rows r and r + 4, r + 2, r + 1 alternate: columns, in the end.
  svuint32_t y0 = svzip1_u32(x0, x4), y1 = svzip2_u32(x0, x4), y2 = svzip1_u32(x1, x5),
             y3 = svzip2_u32(x1, x5), y4 = svzip1_u32(x2, x6), y5 = svzip2_u32(x2, x6),
             y6 = svzip1_u32(x3, x7), y7 = svzip2_u32(x3, x7);
  x0 = svzip1_u32(y0, y4), x1 = svzip2_u32(y0, y4), x2 = svzip1_u32(y1, y5),
  x3 = svzip2_u32(y1, y5), x4 = svzip1_u32(y2, y6), x5 = svzip2_u32(y2, y6),
  x6 = svzip1_u32(y3, y7), x7 = svzip2_u32(y3, y7);
  auto column = [&](int k, svuint32_t a, svuint32_t b) {
    svst1_u32(ALL, (uint32_t*)(to + k * 64), svzip1_u32(a, b));
    svst1_u32(ALL, (uint32_t*)(to + (k + 1) * 64), svzip2_u32(a, b));
  };
  column(0, x0, x4), column(2, x1, x5), column(4, x2, x6), column(6, x3, x7);
}
INL void transpose(const char* rows, int64_t row_bytes, char* to) {
  transpose8(rows, row_bytes, to);
  transpose8(rows + 8 * row_bytes, row_bytes, to + 32);
}
INL void end_of_stores() {}

#undef ALL
#undef OF_ONE
#undef OF_TWO
