// Matrices of 8-bit floats (e4m3) with scales. Their panels are decoded a block of columns at a
// time, exactly, into panels of steps that gemm_float.hpp multiplies; the sums of a block are
// multiplied by its scale. A few tokens are multiplied while decoding: memory is the limit then.
//
// A panel is float32 scales, one of each row or one of each block, padded to whole lines; then the
// codes as bf16 is stored: [K/2][16][2].
#pragma once
#include "dense.hpp"
#include "gemm_float.hpp"
#if defined(INFERNO_AMX)
#include "gemm_amx.hpp"
#endif

namespace {

constexpr int64_t kBlock = 128;  // columns that share a scale, and are decoded at once
constexpr int kFewTokens = 4;    // multiplied while decoding

INL bool is_codes(int w_dtype) { return w_dtype == kFp8Rows || w_dtype == kFp8Blocks; }

struct CodePanel {
  int64_t blocks, scales, codes_at, bytes;  // scales: their number; codes_at: their first byte
  CodePanel(int w_dtype, int64_t K) : blocks((K + kBlock - 1) / kBlock) {
    scales = w_dtype == kFp8Rows ? 16 : blocks;
    codes_at = whole_lines(4 * scales);
    bytes = codes_at + whole_lines((K + 1) / 2 * 32);
  }
  static int64_t whole_lines(int64_t n) { return (n + 63) / 64 * 64; }
  // Of the sixteen rows, in block b.
  static F32 scale(int w_dtype, const char* panel, int64_t b) {
    const float* scales = (const float*)panel;
    return w_dtype == kFp8Rows ? load(scales) : splat(scales[b]);
  }
};

INL F32 first_value(Pairs p) { return first(p) * splat(kFp8Read); }
INL F32 second_value(Pairs p) { return second(p) * splat(kFp8Read); }

// A step of codes, with the same sums as a step of S on what they are decoded to.
template <class S>
struct CodeSteps;
template <>
struct CodeSteps<ColumnSteps<float>> {
  using X = float;
  static constexpr int kBytes = 32, kPerStep = 2, kColumns = 2;
  template <int R, int T>
  INL void step(F32 (&sum)[R][T], const char* const (&w)[R], const X* x) {
    F32 v[R];
    UNROLL_FOR (int r = 0; r < R; r++) v[r] = first_value(load_pairs((const fp8*)w[r]));
    UNROLL_FOR (int t = 0; t < T; t++) {
      F32 b = splat(x[t]);
      UNROLL_FOR (int r = 0; r < R; r++) {
        sum[r][t] = fma(v[r], b, sum[r][t]);
        compute_now(sum[r][t]);
      }
    }
    UNROLL_FOR (int r = 0; r < R; r++) v[r] = second_value(load_pairs((const fp8*)w[r]));
    UNROLL_FOR (int t = 0; t < T; t++) {
      F32 b = splat(x[T + t]);
      UNROLL_FOR (int r = 0; r < R; r++) sum[r][t] = fma(v[r], b, sum[r][t]);
    }
  }
};
#if defined(INFERNO_BF16)
template <>
struct CodeSteps<Bf16DotSteps> {
  using X = uint32_t;
  static constexpr int kBytes = 32, kPerStep = 1, kColumns = 2;
  template <int R, int T>
  INL void step(F32 (&sum)[R][T], const char* const (&w)[R], const X* x) {
    Pairs v[R];
    UNROLL_FOR (int r = 0; r < R; r++) v[r] = load_values((const fp8*)w[r]);
    UNROLL_FOR (int t = 0; t < T; t++) {
      Pairs b = splat_pair(x[t]);
      UNROLL_FOR (int r = 0; r < R; r++) sum[r][t] = dot2(sum[r][t], v[r], b);
    }
  }
};
#endif
template <class S>
constexpr int tokens_of<CodeSteps<S>> = kFewTokens;

// Whether S multiplies decoded panels; and also while decoding.
template <class S>
constexpr bool kDecodes = __is_same(S, ColumnSteps<float>);
template <class S>
constexpr bool kDecodesFew = __is_same(S, ColumnSteps<float>);
#if defined(INFERNO_BF16)
template <>
constexpr bool kDecodes<Bf16DotSteps> = true;
template <>
constexpr bool kDecodesFew<Bf16DotSteps> = true;
#endif
#if defined(INFERNO_AMX)
template <>
constexpr bool kDecodes<Bf16Tiles> = true;
template <>
constexpr bool kDecodes<Bf16InTileOrder> = true;
#endif

// Bytes of a block of a panel, decoded for S.
template <class S>
constexpr int64_t kDecodedBytes = kBlock / S::kColumns * S::kBytes;

template <class S>
void decode(const char* codes, int64_t pairs, char* to) {
  for (int64_t i = 0; i < pairs; i++, codes += 32) {
    if (i % 2 == 0) __builtin_prefetch(codes + 2048, 0, 2);
    if constexpr (__is_same(S, ColumnSteps<float>)) {
      Pairs v = load_pairs((const fp8*)codes);
      store((float*)to + 32 * i, first_value(v));
      store((float*)to + 32 * i + 16, second_value(v));
    } else {
#if defined(INFERNO_BF16)
      store_pairs(to + 64 * i, load_values((const fp8*)codes));
#endif
    }
  }
}

// ---- layout ----

// Build a panel of `present` rows, the others zero. Returns whether all codes are numbers.
INL bool repack_codes(const uint8_t* rows, int64_t row_stride, const float* scales, int64_t present,
                      const CodePanel& panel, int64_t K, char* to) {
  memset(to, 0, size_t(panel.bytes));
  memcpy(to, scales, size_t(4 * panel.scales));
  uint8_t* codes = (uint8_t*)to + panel.codes_at;
  int nan = 0;
  for (int64_t r = 0; r < present; r++) {
    const uint8_t* row = rows + r * row_stride;
    for (int64_t k = 0; k < K; k++) nan |= (row[k] & 0x7f) == 0x7f;
    for (int64_t k = 0; k + 2 <= K; k += 2) memcpy(codes + k * 16 + 2 * r, row + k, 2);
    if (K % 2) codes[(K - 1) * 16 + 2 * r] = row[K - 1];
  }
  return !nan;
}

template <class Y>
void row_of_codes(int w_dtype, const char* panel, const CodePanel& about, int64_t lane, int64_t K,
                  Y* y) {
  const float* scales = (const float*)panel;
  const fp8* codes = (const fp8*)(panel + about.codes_at) + 2 * lane;
  for (int64_t k = 0; k < K; k++)
    from_float(y + k, to_float(codes[k / 2 * 32 + k % 2]) *
                          scales[w_dtype == kFp8Rows ? lane : k / kBlock]);
}

}  // namespace
