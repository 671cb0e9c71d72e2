// Sixteen lanes in four NEON registers. Any ARMv8 processor runs the plainest form; with the
// compiler's flags come the dot product of bytes (INFERNO_NEON_DOT), the matrix product of bytes
// and the dot product of bfloat16 (INFERNO_NEON_MATRIX).
#pragma once
#include <arm_neon.h>

struct F32 { float32x4_t a, b, c, d; };
struct I32 { int32x4_t a, b, c, d; };

#define OF_ONE(name, R, A, f) \
  INL R name(A x) { return {f(x.a), f(x.b), f(x.c), f(x.d)}; }
#define OF_TWO(name, R, A, B, f) \
  INL R name(A x, B y) { return {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)}; }

OF_TWO(operator+, F32, F32, F32, vaddq_f32)
OF_TWO(operator-, F32, F32, F32, vsubq_f32)
OF_TWO(operator*, F32, F32, F32, vmulq_f32)
OF_TWO(operator/, F32, F32, F32, vdivq_f32)
OF_TWO(add, I32, I32, I32, vaddq_s32)

INL F32 splat(float x) {
  float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
INL I32 splat(int32_t x) {
  int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}

INL F32 load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
INL float32x4_t widen_low(uint16x8_t bf16s) {
  return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), bf16s));
}
INL float32x4_t widen_high(uint16x8_t bf16s) {
  return vreinterpretq_f32_u16(vzip2q_u16(vdupq_n_u16(0), bf16s));
}
INL F32 load(const bf16* p) {
  uint16x8_t u = vld1q_u16((const uint16_t*)p), v = vld1q_u16((const uint16_t*)p + 8);
  return {widen_low(u), widen_high(u), widen_low(v), widen_high(v)};
}
INL F32 widen(float16x8_t u, float16x8_t v) {
  return {vcvt_f32_f16(vget_low_f16(u)), vcvt_high_f32_f16(u), vcvt_f32_f16(vget_low_f16(v)),
          vcvt_high_f32_f16(v)};
}
INL F32 load(const f16* p) {
  return widen(vreinterpretq_f16_u16(vld1q_u16((const uint16_t*)p)),
               vreinterpretq_f16_u16(vld1q_u16((const uint16_t*)p + 8)));
}
INL I32 load(const int32_t* p) {
  return {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
}
INL I32 load(const int8_t* p) {
  int8x16_t x = vld1q_s8(p);
  int16x8_t u = vmovl_s8(vget_low_s8(x)), v = vmovl_high_s8(x);
  return {vmovl_s16(vget_low_s16(u)), vmovl_high_s16(u), vmovl_s16(vget_low_s16(v)),
          vmovl_high_s16(v)};
}
INL I32 load(const uint8_t* p) {
  uint8x16_t x = vld1q_u8(p);
  int16x8_t u = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x))),
            v = vreinterpretq_s16_u16(vmovl_high_u8(x));
  return {vmovl_s16(vget_low_s16(u)), vmovl_high_s16(u), vmovl_s16(vget_low_s16(v)),
          vmovl_high_s16(v)};
}

INL void store(float* p, F32 x) {
  vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b), vst1q_f32(p + 8, x.c), vst1q_f32(p + 12, x.d);
}
INL void store(int32_t* p, I32 x) {
  vst1q_s32(p, x.a), vst1q_s32(p + 4, x.b), vst1q_s32(p + 8, x.c), vst1q_s32(p + 12, x.d);
}
INL void store(f16* p, F32 x) {
  vst1q_u16((uint16_t*)p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
  vst1q_u16((uint16_t*)p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}
INL uint16x8_t narrow(float32x4_t x, float32x4_t y) {  // to bf16, ties to even; NaN stays NaN
#if defined(INFERNO_NEON_MATRIX)
  return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x), y));
#else
  auto rounded = [](float32x4_t f) {
    uint32x4_t u = vreinterpretq_u32_f32(f);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t up = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    return vbslq_u32(vceqq_f32(f, f), up, vorrq_u32(u, vdupq_n_u32(0x400000)));
  };
  return vshrn_high_n_u32(vshrn_n_u32(rounded(x), 16), rounded(y), 16);
#endif
}
INL void store(bf16* p, F32 x) {
  vst1q_u16((uint16_t*)p, narrow(x.a, x.b)), vst1q_u16((uint16_t*)p + 8, narrow(x.c, x.d));
}

INL float32x4_t max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
INL float32x4_t min4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
OF_TWO(max, F32, F32, F32, max4)
OF_TWO(min, F32, F32, F32, min4)
OF_ONE(abs, F32, F32, vabsq_f32)
OF_ONE(to_f32, F32, I32, vcvtq_f32_s32)
OF_ONE(round_i32, I32, F32, vcvtnq_s32_f32)
OF_ONE(round_f32, F32, F32, vrndnq_f32)
INL F32 fma(F32 x, F32 y, F32 z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
          vfmaq_f32(z.d, x.d, y.d)};
}
INL float32x4_t times_pow2_4(float32x4_t x, float32x4_t n) {
  int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
  return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
OF_TWO(times_pow2, F32, F32, F32, times_pow2_4)
INL float sum(F32 x) {
  float32x4_t s = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  return vaddv_f32(vadd_f32(vget_low_f32(s), vget_high_f32(s)));
}
INL float largest(F32 x) {
  return vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(x.a, x.b), vmaxnmq_f32(x.c, x.d)));
}
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  int32x4_t from = vdupq_n_s32(int32_t(min(max(first, 0), 16))),
            to = vdupq_n_s32(int32_t(min(max(stop, 0), 16)));
  const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  I32 i = load(lanes);
  auto select = [&](int32x4_t at, float32x4_t inside, float32x4_t outside) {
    return vbslq_f32(vandq_u32(vcgeq_s32(at, from), vcltq_s32(at, to)), inside, outside);
  };
  return {select(i.a, x.a, y.a), select(i.b, x.b, y.b), select(i.c, x.c, y.c),
          select(i.d, x.d, y.d)};
}
INL void compute_now(F32& x) { asm("" : "+w"(x.a), "+w"(x.b), "+w"(x.c), "+w"(x.d)); }

// ---- pairs of bf16 ----

struct Pairs { uint32x4_t a, b, c, d; };
INL Pairs load_pairs(const bf16* p) {
  const uint16_t* u = (const uint16_t*)p;
  return {vreinterpretq_u32_u16(vld1q_u16(u)), vreinterpretq_u32_u16(vld1q_u16(u + 8)),
          vreinterpretq_u32_u16(vld1q_u16(u + 16)), vreinterpretq_u32_u16(vld1q_u16(u + 24))};
}
INL Pairs splat_pair(uint32_t pair) {
  uint32x4_t v = vdupq_n_u32(pair);
  return {v, v, v, v};
}
INL float32x4_t first4(uint32x4_t x) { return vreinterpretq_f32_u32(vshlq_n_u32(x, 16)); }
INL float32x4_t second4(uint32x4_t x) {
  return vreinterpretq_f32_u32(vandq_u32(x, vdupq_n_u32(0xffff0000)));
}
OF_ONE(first, F32, Pairs, first4)
OF_ONE(second, F32, Pairs, second4)
#if defined(INFERNO_NEON_MATRIX)
INL float32x4_t dot2_4(float32x4_t sum, uint32x4_t x, uint32x4_t y) {
  return vbfdotq_f32(sum, vreinterpretq_bf16_u32(x), vreinterpretq_bf16_u32(y));
}
INL F32 dot2(F32 sum, Pairs x, Pairs y) {
  return {dot2_4(sum.a, x.a, y.a), dot2_4(sum.b, x.b, y.b), dot2_4(sum.c, x.c, y.c),
          dot2_4(sum.d, x.d, y.d)};
}
#else
INL F32 dot2(F32 sum, Pairs x, Pairs y) {
  return fma(first(x), first(y), fma(second(x), second(y), sum));
}
#endif

// ---- pairs of 16 bits ----

INL void store_pairs(void* p, Pairs x) {
  uint32_t* u = (uint32_t*)p;
  vst1q_u32(u, x.a), vst1q_u32(u + 4, x.b), vst1q_u32(u + 8, x.c), vst1q_u32(u + 12, x.d);
}
INL Pairs load_pairs(const int16_t* p) { return load_pairs((const bf16*)p); }
INL Pairs load_pairs(const int8_t* p) {
  int8x16_t x = vld1q_s8(p), y = vld1q_s8(p + 16);
  return {vreinterpretq_u32_s16(vmovl_s8(vget_low_s8(x))), vreinterpretq_u32_s16(vmovl_high_s8(x)),
          vreinterpretq_u32_s16(vmovl_s8(vget_low_s8(y))), vreinterpretq_u32_s16(vmovl_high_s8(y))};
}
INL Pairs load_pairs(const fp8* p) {
  int8x16_t x = vld1q_s8((const int8_t*)p), y = vld1q_s8((const int8_t*)p + 16);
  auto shifted = [](int16x8_t v) {  // the sign is in the top bits
    return vandq_u32(vreinterpretq_u32_s16(v), vdupq_n_u32(0x87f087f0));
  };
  return {shifted(vshll_n_s8(vget_low_s8(x), 4)), shifted(vshll_high_n_s8(x, 4)),
          shifted(vshll_n_s8(vget_low_s8(y), 4)), shifted(vshll_high_n_s8(y, 4))};
}
#if defined(INFERNO_NEON_MATRIX)
INL Pairs load_values(const fp8* p) {
  static const uint8_t kLow[16] = {0, 0, 0x80, 0xc0, 0, 0x20, 0x40, 0x60},
                       kHigh[16] = {0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c};
  struct Halves { uint8x16_t low, high; };  // of the bf16
  auto halves = [](uint8x16_t x) {
    uint8x16_t magnitude = vandq_u8(x, vdupq_n_u8(0x7f)), sign = vandq_u8(x, vdupq_n_u8(0x80));
    uint8x16_t small = vcltq_u8(magnitude, vdupq_n_u8(8));
    uint8x16_t normal = vaddq_u8(vshrq_n_u8(magnitude, 4), vdupq_n_u8(0x3c));
    uint8x16_t high = vbslq_u8(small, vqtbl1q_u8(vld1q_u8(kHigh), magnitude), normal);
    uint8x16_t low =
        vbslq_u8(small, vqtbl1q_u8(vld1q_u8(kLow), magnitude), vshlq_n_u8(magnitude, 4));
    return Halves{low, vorrq_u8(high, sign)};
  };
  Halves u = halves(vld1q_u8((const uint8_t*)p)), v = halves(vld1q_u8((const uint8_t*)p + 16));
  return {vreinterpretq_u32_u8(vzip1q_u8(u.low, u.high)),
          vreinterpretq_u32_u8(vzip2q_u8(u.low, u.high)),
          vreinterpretq_u32_u8(vzip1q_u8(v.low, v.high)),
          vreinterpretq_u32_u8(vzip2q_u8(v.low, v.high))};
}
#endif
INL int32x4_t dot2_4(int32x4_t sum, uint32x4_t x, uint32x4_t y) {
  int16x8_t u = vreinterpretq_s16_u32(x), v = vreinterpretq_s16_u32(y);
  int32x4_t low = vmull_s16(vget_low_s16(u), vget_low_s16(v)), high = vmull_high_s16(u, v);
  return vaddq_s32(sum, vpaddq_s32(low, high));
}
INL I32 dot2(I32 sum, Pairs x, Pairs y) {
  return {dot2_4(sum.a, x.a, y.a), dot2_4(sum.b, x.b, y.b), dot2_4(sum.c, x.c, y.c),
          dot2_4(sum.d, x.d, y.d)};
}
INL void store(int16_t* p, I32 x) {
  vst1q_s16(p, vmovn_high_s32(vmovn_s32(x.a), x.b));
  vst1q_s16(p + 8, vmovn_high_s32(vmovn_s32(x.c), x.d));
}

// ---- bytes ----

struct B64 { uint8x16_t a, b, c, d; };
using Four = int8x16_t;

INL B64 load_bytes(const uint8_t* p) {
  return {vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
}
INL B64 load_line(const uint8_t* p) { return load_bytes(p); }
INL void store_bytes(uint8_t* p, B64 v) {
  vst1q_u8(p, v.a), vst1q_u8(p + 16, v.b), vst1q_u8(p + 32, v.c), vst1q_u8(p + 48, v.d);
}
INL uint8x16_t bits16(uint8x16_t v, int n, uint8_t mask) {
  if (n < 0 && mask == 0xff >> -n) return v >> uint8_t(-n);  // bytes shift on their own
  return (n > 0 ? v << uint8_t(n) : n < 0 ? v >> uint8_t(-n) : v) & mask;
}
INL B64 bits(B64 v, int n, uint8_t mask) {
  return {bits16(v.a, n, mask), bits16(v.b, n, mask), bits16(v.c, n, mask), bits16(v.d, n, mask)};
}
OF_TWO(either, B64, B64, B64, vorrq_u8)
INL B64 look_up(const uint8_t* table, B64 v) {
  uint8x16_t t = vld1q_u8(table);
  return {vqtbl1q_u8(t, v.a), vqtbl1q_u8(t, v.b), vqtbl1q_u8(t, v.c), vqtbl1q_u8(t, v.d)};
}
INL float32x4_t powers4(int32x4_t x) {
  return vreinterpretq_f32_s32(vmaxq_s32(vshlq_n_s32(x, 23), vdupq_n_s32(0x00400000)));
}
OF_ONE(powers, F32, I32, powers4)
INL F32 load_powers(const uint8_t* p) { return powers(load(p)); }
INL Four load_four(const uint8_t* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(x));
}
INL int32x4_t magnitude_bits4(float32x4_t x) { return vreinterpretq_s32_f32(vabsq_f32(x)); }
OF_ONE(magnitude_bits, I32, F32, magnitude_bits4)
OF_TWO(max_i32, I32, I32, I32, vmaxq_s32)
INL int32_t largest_i32(I32 x) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d)));
}
INL int32_t sum_i32(I32 x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d)));
}
INL void store_int8(uint8_t* p, I32 x) {
  int16x8_t low = vmovn_high_s32(vmovn_s32(x.a), x.b), high = vmovn_high_s32(vmovn_s32(x.c), x.d);
  vst1q_s8((int8_t*)p, vmovn_high_s16(vmovn_s16(low), high));
}
INL int8x16_t less_half(uint8x16_t v) {  // 0 .. 255 stands for -128 .. 127
  return vreinterpretq_s8_u8(veorq_u8(v, vdupq_n_u8(0x80)));
}

#if defined(INFERNO_NEON_DOT)

template <int BITS>
struct Dot {
  using Acc = I32;
  static constexpr int kRun = 8;
#if defined(INFERNO_NEON_MATRIX)  // unsigned times signed bytes
  static constexpr bool kSigned = false;
  INL int32x4_t add(int32x4_t a, uint8x16_t w, Four x) { return vusdotq_s32(a, w, x); }
  INL B64 code(B64 v) { return v; }
#else  // signed times signed, which holds codes below 128
  static constexpr bool kSigned = BITS == 8;
  INL int32x4_t add(int32x4_t a, uint8x16_t w, Four x) {
    return vdotq_s32(a, vreinterpretq_s8_u8(w), x);
  }
  INL uint8x16_t code(uint8x16_t v) { return vreinterpretq_u8_s8(less_half(v)); }
  INL B64 code(B64 v) { return kSigned ? B64{code(v.a), code(v.b), code(v.c), code(v.d)} : v; }
#endif
  INL Acc start(int32_t first) { return splat(kSigned ? 0 : first); }
  INL Acc add(Acc a, B64 w, Four x) {
    return {add(a.a, w.a, x), add(a.b, w.b, x), add(a.c, w.c, x), add(a.d, w.d, x)};
  }
  INL I32 total(Acc a, int32_t) { return a; }
};

#else

// Products are summed in 16 bits, those of a lane's first two bytes and last two each in their own:
// kRun codes (0 .. 2^BITS - 1) times activations (-127 .. 127) stay within +-32767.
template <int BITS>
struct Dot {
  struct Acc { int16x8_t a, b, c, d, e, f, g, h; };
  static constexpr int kRun = BITS <= 5 ? 8 : 4;
  static_assert(kRun * ((1 << BITS) - 1) * 127 <= 32767, "sums of 16 bits");
  static constexpr bool kSigned = false;
  INL B64 code(B64 v) { return v; }
  INL Acc start(int32_t) {
    int16x8_t z = vdupq_n_s16(0);
    return {z, z, z, z, z, z, z, z};
  }
  INL int16x8_t low(int16x8_t a, uint8x16_t w, Four x) {
    return vmlal_s8(a, vget_low_s8(vreinterpretq_s8_u8(w)), vget_low_s8(x));
  }
  INL int16x8_t high(int16x8_t a, uint8x16_t w, Four x) {
    return vmlal_high_s8(a, vreinterpretq_s8_u8(w), x);
  }
  INL Acc add(Acc a, B64 w, Four x) {
    return {low(a.a, w.a, x), high(a.b, w.a, x), low(a.c, w.b, x), high(a.d, w.b, x),
            low(a.e, w.c, x), high(a.f, w.c, x), low(a.g, w.d, x), high(a.h, w.d, x)};
  }
  INL int32x4_t total(int16x8_t low, int16x8_t high, int32_t first) {
    return vaddq_s32(vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)), vdupq_n_s32(first));
  }
  INL I32 total(Acc a, int32_t first) {
    return {total(a.a, a.b, first), total(a.c, a.d, first), total(a.e, a.f, first),
            total(a.g, a.h, first)};
  }
};

// Eight bits: two products of -128 .. 127 and -127 .. 127 fit in 16 bits.
template <>
struct Dot<8> {
  using Acc = I32;
  static constexpr int kRun = 8;
  static constexpr bool kSigned = true;
  INL uint8x16_t code(uint8x16_t v) { return vreinterpretq_u8_s8(less_half(v)); }
  INL B64 code(B64 v) { return {code(v.a), code(v.b), code(v.c), code(v.d)}; }
  INL Acc start(int32_t) { return splat(int32_t(0)); }
  INL int32x4_t add(int32x4_t a, uint8x16_t w, Four x) {
    int8x16_t s = vreinterpretq_s8_u8(w);
    return vpadalq_s16(a,
                       vpaddq_s16(vmull_s8(vget_low_s8(s), vget_low_s8(x)), vmull_high_s8(s, x)));
  }
  INL Acc add(Acc a, B64 w, Four x) {
    return {add(a.a, w.a, x), add(a.b, w.b, x), add(a.c, w.c, x), add(a.d, w.d, x)};
  }
  INL I32 total(Acc a, int32_t) { return a; }
};

#endif

#if defined(INFERNO_NEON_MATRIX)
// ---- eight columns of two tokens ----

struct Eights { B64 low, high; };    // eight codes of each lane, in order
struct PairSums { I32 low, high; };  // of two tokens, alternating: lanes 0 to 7, 8 to 15
INL uint8x16_t zip_low(uint8x16_t x, uint8x16_t y) {
  return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(x), vreinterpretq_u32_u8(y)));
}
INL uint8x16_t zip_high(uint8x16_t x, uint8x16_t y) {
  return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(x), vreinterpretq_u32_u8(y)));
}
INL Eights interleave(B64 x, B64 y) {
  return {{zip_low(x.a, y.a), zip_high(x.a, y.a), zip_low(x.b, y.b), zip_high(x.b, y.b)},
          {zip_low(x.c, y.c), zip_high(x.c, y.c), zip_low(x.d, y.d), zip_high(x.d, y.d)}};
}
INL B64 interleave(const uint8_t* p, const uint8_t* q) {  // of eight lanes, from 32 bytes of each
  uint8x16_t a = vld1q_u8(p), b = vld1q_u8(p + 16), c = vld1q_u8(q), d = vld1q_u8(q + 16);
  return {zip_low(a, c), zip_high(a, c), zip_low(b, d), zip_high(b, d)};
}
// Two fours of two tokens, each token's together.
INL int8x16_t load_eights(const uint8_t* first, const uint8_t* second) {
  uint64_t x, y;
  memcpy(&x, first, 8), memcpy(&y, second, 8);
  return vreinterpretq_s8_u8(
      zip_low(vreinterpretq_u8_u64(vdupq_n_u64(x)), vreinterpretq_u8_u64(vdupq_n_u64(y))));
}
INL PairSums start_pair(int32_t first, int32_t second) {
  int32x4_t v = vzip1q_s32(vdupq_n_s32(first), vdupq_n_s32(second));
  return {{v, v, v, v}, {v, v, v, v}};
}
INL I32 multiply_eights(I32 sum, B64 w, int8x16_t x) {
  return {vusmmlaq_s32(sum.a, w.a, x), vusmmlaq_s32(sum.b, w.b, x), vusmmlaq_s32(sum.c, w.c, x),
          vusmmlaq_s32(sum.d, w.d, x)};
}
INL I32 first(PairSums s) {
  return {vuzp1q_s32(s.low.a, s.low.b), vuzp1q_s32(s.low.c, s.low.d),
          vuzp1q_s32(s.high.a, s.high.b), vuzp1q_s32(s.high.c, s.high.d)};
}
INL I32 second(PairSums s) {
  return {vuzp2q_s32(s.low.a, s.low.b), vuzp2q_s32(s.low.c, s.low.d),
          vuzp2q_s32(s.high.a, s.high.b), vuzp2q_s32(s.high.c, s.high.d)};
}

struct FloatPairs { F32 low, high; };
INL F32 multiply_eights(F32 sum, B64 w, int8x16_t x) {  // eight bytes are four bf16
  bfloat16x8_t four = vreinterpretq_bf16_s8(x);
  return {vbfmmlaq_f32(sum.a, vreinterpretq_bf16_u8(w.a), four),
          vbfmmlaq_f32(sum.b, vreinterpretq_bf16_u8(w.b), four),
          vbfmmlaq_f32(sum.c, vreinterpretq_bf16_u8(w.c), four),
          vbfmmlaq_f32(sum.d, vreinterpretq_bf16_u8(w.d), four)};
}
INL F32 first(FloatPairs s) {
  return {vuzp1q_f32(s.low.a, s.low.b), vuzp1q_f32(s.low.c, s.low.d),
          vuzp1q_f32(s.high.a, s.high.b), vuzp1q_f32(s.high.c, s.high.d)};
}
INL F32 second(FloatPairs s) {
  return {vuzp2q_f32(s.low.a, s.low.b), vuzp2q_f32(s.low.c, s.low.d),
          vuzp2q_f32(s.high.a, s.high.b), vuzp2q_f32(s.high.c, s.high.d)};
}
#endif

// ---- transposition ----

INL void transpose(const char* rows, int64_t row_bytes, char* to) {
  UNROLL_FOR (int r = 0; r < 16; r += 4)
    UNROLL_FOR (int k = 0; k < 8; k += 4) {
      uint32x4_t x[4];
      UNROLL_FOR (int i = 0; i < 4; i++)
        x[i] = vreinterpretq_u32_u8(vld1q_u8((const uint8_t*)rows + (r + i) * row_bytes + 4 * k));
      uint64x2_t low = vreinterpretq_u64_u32(vtrn1q_u32(x[0], x[1])),
                 low2 = vreinterpretq_u64_u32(vtrn1q_u32(x[2], x[3])),
                 high = vreinterpretq_u64_u32(vtrn2q_u32(x[0], x[1])),
                 high2 = vreinterpretq_u64_u32(vtrn2q_u32(x[2], x[3]));
      uint8_t* at = (uint8_t*)to + 64 * k + 4 * r;
      vst1q_u8(at, vreinterpretq_u8_u64(vtrn1q_u64(low, low2)));
      vst1q_u8(at + 64, vreinterpretq_u8_u64(vtrn1q_u64(high, high2)));
      vst1q_u8(at + 128, vreinterpretq_u8_u64(vtrn2q_u64(low, low2)));
      vst1q_u8(at + 192, vreinterpretq_u8_u64(vtrn2q_u64(high, high2)));
    }
}
INL void end_of_stores() {}

#undef OF_ONE
#undef OF_TWO
