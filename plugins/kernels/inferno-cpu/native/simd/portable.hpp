// Sixteen lanes as a GCC vector, which the compiler lowers to the target; see ../simd.hpp for what
// each name means.
#pragma once

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

typedef uint32_t Pairs __attribute__((vector_size(64)));
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

INL void transpose(const char* rows, int64_t row_bytes, char* to) {
  for (int k = 0; k < 8; k++)
    for (int r = 0; r < 16; r++) memcpy(to + k * 64 + r * 4, rows + r * row_bytes + k * 4, 4);
}
INL void end_of_stores() {}

// ---- bytes ----

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
INL B64 bits(B64 v, int n, uint8_t mask) {
  return (n > 0 ? v << n : n < 0 ? v >> -n : v) & (mask * 0x01010101u);
}
INL B64 either(B64 a, B64 b) { return a | b; }
INL B64 look_up(const uint8_t* table, B64 v) {
  uint8_t bytes[64];
  memcpy(bytes, &v, 64);
  for (int i = 0; i < 64; i++) bytes[i] = table[bytes[i]];
  return load_bytes(bytes);
}
INL F32 load_powers(const uint8_t* p) {
  I32 x = load(p) << 23;
  return (F32)(x > 0x00400000 ? x : I32{} + 0x00400000);
}
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

// ---- attention ----

INL Pairs load_pairs(const int16_t* p) { return load_pairs((const bf16*)p); }
INL Pairs load_pairs(const int8_t* p) {
  Pairs r;
  EACH(uint32_t(uint16_t(int16_t(p[2 * i + 1]))) << 16 | uint16_t(int16_t(p[2 * i])));
}
INL Pairs load_pairs(const fp8* p) {
  return (load_pairs((const int8_t*)p) << 4) & 0x87f087f0;  // the sign is in the top bits
}
INL void store_pairs(void* p, Pairs x) { memcpy(p, &x, 64); }
INL I32 dot2(I32 sum, Pairs a, Pairs b) {
  I32 x = (I32)a, y = (I32)b;
  return sum + ((I32)(a << 16) >> 16) * ((I32)(b << 16) >> 16) + (x >> 16) * (y >> 16);
}
INL void store(int16_t* p, I32 x) {
  for (int i = 0; i < 16; i++) p[i] = int16_t(x[i]);
}
INL F32 keep(F32 x, F32 y, int64_t first, int64_t stop) {
  for (int i = 0; i < 16; i++) x[i] = i >= first && i < stop ? x[i] : y[i];
  return x;
}

#undef EACH
