// Matrices of 8-bit floats (e4m3), or of 4-bit codes that select one of 16 floats, with scales. Their
// panels are decoded a block of columns at a time into panels of steps that gemm_float.hpp
// multiplies; the sums of a block are multiplied by its scale. A few tokens are multiplied while
// decoding: memory is the limit then.
//
// A panel of float8 is float32 scales, one of each row or one of each block, padded to whole lines;
// then the codes as bf16 is stored: [K/2][16][2]. One of a table is for each block the float32 scales
// of its rows; then for every eight columns four bytes of each row: nibble i of the first two
// bytes is column 2i, of the last two column 2i + 1.
#pragma once
#include "dense.hpp"
#include "gemm_float.hpp"
#include "simd_table.hpp"
#if defined(INFERNO_AMX)
#include "gemm_amx.hpp"
#endif

namespace {

constexpr int64_t kBlock = 128;  // the most columns that share a scale, and are decoded at once
constexpr int kFewTokens = 4;    // multiplied while decoding

INL bool is_codes(int w_dtype) { return w_dtype >= kFp8Rows; }
INL bool is_table(int w_dtype) { return w_dtype >= kNf4_g32; }

// The values of codes times a factor, rounded to bfloat16, and its inverse. nf4's factor gives the
// least error, 6.3e-4 of the values' norm and 1.9e-3 of a value; fp4 is exact.
constexpr Table kNf4(0x1.644bdep-1f,
                     {0xbfb8, 0xbf80, 0xbf41, 0xbf11, 0xbed1, 0xbe88, 0xbe06, 0x0000, 0x3dea,
                      0x3e6d, 0x3eb5, 0x3ef9, 0x3f22, 0x3f4f, 0x3f85, 0x3fb8});
constexpr Table kFp4(1.0f / 12,
                     {0x0000, 0x3d80, 0x4100, 0x4140, 0x4080, 0x40c0, 0x4000, 0x4040, 0x8000,
                      0xbd80, 0xc100, 0xc140, 0xc080, 0xc0c0, 0xc000, 0xc040});
INL const Table& table_of(int w_dtype) { return w_dtype < kFp4_g32 ? kNf4 : kFp4; }

struct CodePanel {
  bool table, by_rows;
  int64_t block, blocks, scales;           // columns of a block; blocks of a row; number of scales
  int64_t codes_at, block_bytes, bytes;    // the first block's codes; from one to the next; of all
  CodePanel(int w_dtype, int64_t K) : table(is_table(w_dtype)), by_rows(w_dtype == kFp8Rows) {
    block = table ? 32 << (w_dtype - kNf4_g32) % 3 : kBlock;
    blocks = (K + block - 1) / block;
    scales = table ? 16 * blocks : by_rows ? 16 : blocks;
    codes_at = table ? 64 : whole_lines(4 * scales);
    block_bytes = table ? 64 + 8 * block : 16 * block;
    bytes = table ? blocks * block_bytes : codes_at + whole_lines((K + 1) / 2 * 32);
  }
  static int64_t whole_lines(int64_t n) { return (n + 63) / 64 * 64; }
  // Of the sixteen rows, in block b.
  F32 scale(const char* panel, int64_t b) const {
    if (table) return load((const float*)(panel + b * block_bytes));
    return by_rows ? load((const float*)panel) : splat(((const float*)panel)[b]);
  }
};

INL F32 first_value(Pairs p) { return first(p) * splat(kFp8Read); }
INL F32 second_value(Pairs p) { return second(p) * splat(kFp8Read); }

// How codes are read: kPairs of columns at a time.
struct Fp8Codes {
  static constexpr int kPairs = 1, kBytes = 32;
};
template <const Table& TABLE>
struct TableCodes {
  static constexpr int kPairs = 4, kBytes = 64;
  INL void values(const char* codes, Pairs (&v)[4]) {
    look_up_pairs(TABLE, (const uint8_t*)codes, v);
  }
};

// A step of codes, with the same sums as steps of S on what they are decoded to.
template <class S, class C>
struct CodeSteps;
template <>
struct CodeSteps<ColumnSteps<float>, Fp8Codes> {
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
template <const Table& TABLE>
struct CodeSteps<ColumnSteps<float>, TableCodes<TABLE>> {
  using X = float;
  static constexpr int kBytes = 64, kPerStep = 8, kColumns = 8;
  template <int R, int T>
  INL void step(F32 (&sum)[R][T], const char* const (&w)[R], const X* x) {
    UNROLL_FOR (int r = 0; r < R; r++) {
      Pairs v[4];
      TableCodes<TABLE>::values(w[r], v);
      UNROLL_FOR (int i = 0; i < 4; i++) {
        F32 a = first(v[i]), b = second(v[i]);
        UNROLL_FOR (int t = 0; t < T; t++)
          sum[r][t] = fma(a, splat(x[2 * i * T + t]), sum[r][t]);
        UNROLL_FOR (int t = 0; t < T; t++)
          sum[r][t] = fma(b, splat(x[(2 * i + 1) * T + t]), sum[r][t]);
      }
    }
  }
};
#if defined(INFERNO_BF16)
template <>
struct CodeSteps<Bf16DotSteps, Fp8Codes> {
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
template <const Table& TABLE>
struct CodeSteps<Bf16DotSteps, TableCodes<TABLE>> {
  using X = uint32_t;
  static constexpr int kBytes = 64, kPerStep = 4, kColumns = 8;
  template <int R, int T>
  INL void step(F32 (&sum)[R][T], const char* const (&w)[R], const X* x) {
    Pairs v[R][4];
    UNROLL_FOR (int r = 0; r < R; r++) TableCodes<TABLE>::values(w[r], v[r]);
    UNROLL_FOR (int i = 0; i < 4; i++)
      UNROLL_FOR (int t = 0; t < T; t++) {
        Pairs b = splat_pair(x[i * T + t]);
        UNROLL_FOR (int r = 0; r < R; r++) sum[r][t] = dot2(sum[r][t], v[r][i], b);
      }
  }
};
#endif
template <class S, class C>
constexpr int tokens_of<CodeSteps<S, C>> = kFewTokens;

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
void decode_fp8(const char* codes, int64_t columns, char* to) {
  for (int64_t i = 0; i < (columns + 1) / 2; i++, codes += 32) {
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

template <class S, const Table& TABLE>
void decode_table(const char* codes, int64_t columns, char* to) {
  for (int64_t k = 0; k < columns; k += 8, codes += 64) {
    __builtin_prefetch(codes + 2048, 0, 2);
    Pairs v[4];
    TableCodes<TABLE>::values(codes, v);
    UNROLL_FOR (int i = 0; i < 4; i++) {
      if constexpr (__is_same(S, ColumnSteps<float>)) {
        store((float*)to + 16 * (k + 2 * i), first(v[i]));
        store((float*)to + 16 * (k + 2 * i + 1), second(v[i]));
      } else {
        store_pairs(to + 64 * (k / 2 + i), v[i]);
      }
    }
  }
}

// The function that decodes a block of `columns` columns of a panel.
template <class S>
INL auto decode_for(int w_dtype) {
  if (!is_table(w_dtype)) return decode_fp8<S>;
  return &table_of(w_dtype) == &kNf4 ? decode_table<S, kNf4> : decode_table<S, kFp4>;
}

// out = present panels of a block of codes times T tokens.
template <class S>
INL void multiply_codes(int w_dtype, const char* codes, int64_t panel_bytes, int present,
                        const typename S::X* tokens, int T, int64_t columns, float* out) {
  auto call = [&](auto reads) {
    using C = decltype(reads);
    tile_for<CodeSteps<S, C>>(T, true)(codes, panel_bytes, present, tokens,
                                       (columns + 1) / (2 * C::kPairs), codes + 2048, C::kBytes,
                                       out);
  };
  if (!is_table(w_dtype)) return call(Fp8Codes{});
  &table_of(w_dtype) == &kNf4 ? call(TableCodes<kNf4>{}) : call(TableCodes<kFp4>{});
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

// The same of codes of 4 bits, the earlier column in the low half of a byte. Scales are (present,
// blocks).
INL void repack_nibbles(const Table& table, const uint8_t* rows, int64_t row_stride,
                        const float* scales, int64_t present, const CodePanel& panel, char* to) {
  memset(to, 0, size_t(panel.bytes));
  for (int64_t b = 0; b < panel.blocks; b++, to += panel.block_bytes)
    for (int64_t r = 0; r < present; r++) {
      float scale = scales[r * panel.blocks + b] * table.inverse;
      memcpy(to + 4 * r, &scale, 4);
      const uint8_t* from = rows + r * row_stride + b * panel.block / 2;
      for (int64_t k = 0; k < panel.block; k += 8, from += 4) {
        uint32_t word = 0;
        for (int i = 0; i < 4; i++)
          word |= uint32_t(from[i] & 15) << (4 * i) | uint32_t(from[i] >> 4) << (16 + 4 * i);
        memcpy(to + panel.codes_at + 8 * k + 4 * r, &word, 4);
      }
    }
}

template <class Y>
void row_of_codes(int w_dtype, const char* panel, const CodePanel& about, int64_t lane, int64_t K,
                  Y* y) {
  for (int64_t k = 0; k < K; k++) {
    const char* block = panel + k / about.block * about.block_bytes;
    float value, scale;
    if (about.table) {
      uint32_t word;
      memcpy(&word, block + about.codes_at + k % about.block / 8 * 64 + 4 * lane, 4);
      bf16 found = {table_of(w_dtype).words[word >> (k % 8 / 2 * 4 + k % 2 * 16) & 15]};
      value = to_float(found);
      memcpy(&scale, block + 4 * lane, 4);
    } else {
      value = to_float(((const fp8*)(panel + about.codes_at))[k / 2 * 32 + k % 2 + 2 * lane]);
      memcpy(&scale, panel + 4 * (about.by_rows ? lane : k / kBlock), 4);
    }
    from_float(y + k, value * scale);
  }
}

}  // namespace
