// Quantized matrices, repacked into panels of 16 interleaved rows. A panel is a stream of
// superblocks: the scales of its 16 rows, then for every 32 columns the finer scales and the codes,
// four columns of 16 rows in 64 bytes. packed_layout.hpp defines the codes and scales of each
// layout. The last panel is padded with zeros.
#pragma once
#include <cstdint>

#include "dtype.hpp"

// As numbered in inferno_cpu/layouts.py.
enum PackedLayout : int {
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kInt4_g32,
  kInt4_g64,
  kInt4_g128,
  kMxfp4,
  kIq4_nl,
  kInt8_g32,
  kInt8_g64,
  kInt8_g128,
  kInt8_sym_g64,
  kInt8_sym_g128,
  kW8a8,
  kW8a8_sym,
  kPackedLayouts,
};

struct PackedLinear {
  // Bytes of one panel of K columns.
  int64_t (*panel_bytes)(int layout, int64_t K);
  // Build panels from rows of ggml's blocks, `row_bytes` apart. int4: from codes (N, K / 2), low
  // nibble first, int8: from codes (N, K), both with float16 scales and zeros (N, K / group):
  // w = scale * (code - zero), where symmetric ones have no zeros, but 128. w8a8: as int8, with
  // float32 scales and zeros (N). K is a whole number of blocks or groups, of 32 columns for w8a8.
  void (*repack)(int layout, const void* rows, int64_t row_bytes, const void* scales,
                 const void* zeros, void* panels, int64_t N, int64_t K);
  // y_MN = x_MK @ W_NK.T (+ bias_N), with x rounded to int8 in groups of 32, but for the largest element
  // of a row if it is far above the others, and with w8a8 row by row. An x that is not finite makes
  // its whole row of y NaN.
  // The bias has y's type, or is null.
  void (*matmul)(int layout, const void* panels, int x_dtype, const void* x, int y_dtype, void* y,
                 const void* bias, int64_t M, int64_t N, int64_t K);
  // W holds E stacked matrices of N rows each. Rows starts[e] .. starts[e + 1] of x are multiplied
  // by matrix e, giving the same rows of y (starts[E], N); bias is (E, N). starts[0] = 0, and
  // starts do not decrease.
  void (*grouped)(int layout, const void* panels, int x_dtype, const void* x, int y_dtype, void* y,
                  const void* bias, const int32_t* starts, int64_t E, int64_t N, int64_t K);
  // ids_M = for each row of x, the lowest n with the largest finite (x_MK @ W_NK.T)[n]; -1 if none
  // is finite.
  void (*argmax)(int layout, const void* panels, int x_dtype, const void* x, int64_t* ids,
                 int64_t M, int64_t N, int64_t K);
  // y_MK = W_NK[ids_M]; zeros for an id that is not in 0 .. N - 1.
  void (*rows)(int layout, const void* panels, const int64_t* ids, int y_dtype, void* y, int64_t M,
               int64_t N, int64_t K);
  // Multiply and add codes of 4 bits in registers, as DenseLinear::peak does.
  double (*peak)();
};
