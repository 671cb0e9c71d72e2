// Matrices of float32, bfloat16, float16, float8 and codes of a table, in panels of sixteen rows (gemm_float.hpp,
// dense_codes.hpp). The last panel is padded with zeros.
#pragma once
#include <cstdint>

#include "dtype.hpp"

struct DenseLinear {
  // Copy w_NK (contiguous rows, row_stride elements apart) into panels aligned to 64 bytes, of
  // ceil(N/16) * 16 * K elements; for bfloat16 K is rounded up to even.
  void (*repack)(int dtype, const void* w, int64_t row_stride, void* panels, int64_t N, int64_t K);
  // Copy codes of float8 (e4m3) w_NK into panels aligned to 64 bytes. w_dtype is kFp8Rows, with
  // scales (panels, 16), or kFp8Blocks, with scales (panels, ceil(K / 128)) that all rows of a
  // panel share. A value is its code's times its scale. Returns false if a code is NaN.
  bool (*repack_fp8)(int w_dtype, const void* w, int64_t row_stride, const float* scales,
                     void* panels, int64_t N, int64_t K);
  // Copy codes of 4 bits w (N, K / 2), two in a byte, the earlier column in the low half, rows
  // row_stride bytes apart, with float32 scales (N, K / group), into panels aligned to 64 bytes.
  // w_dtype, kNf4_g32 to kFp4_g128, says the table and the group, which divides K.
  void (*repack_table)(int w_dtype, const void* w, int64_t row_stride, const float* scales,
                       void* panels, int64_t N, int64_t K);
  // y_MN = x_MK @ w_NK.T + bias_N. Rows of x are x_stride apart; y is dense and of x's type or
  // float32; bias is float32 or null. Sums are float32. Products are exact in float32's normal
  // range (see dot2).
  void (*matmul)(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels,
                 const float* bias, int y_dtype, void* y, int64_t M, int64_t N, int64_t K);
  // w holds E stacked matrices of N rows each. Rows starts[e] .. starts[e + 1] of x are multiplied
  // by matrix e, giving the same rows of y (starts[E], N); bias is (E, N). starts[0] = 0, and
  // starts do not decrease.
  void (*grouped)(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels,
                  const float* bias, void* y, const int32_t* starts, int64_t E, int64_t N,
                  int64_t K);
  // ids_M = argmax of each row of x_MK @ w_NK.T in float32, ignoring NaN: the lowest id among
  // equals, -1 if the maximum is not finite.
  void (*argmax)(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels,
                 int64_t* ids, int64_t M, int64_t N, int64_t K);
  // y_TK = w_NK[ids_T]. Returns false, with y incomplete, if an id is not in 0 .. N - 1.
  bool (*rows)(int w_dtype, int y_dtype, const void* panels, const int64_t* ids, void* y, int64_t T,
               int64_t N, int64_t K);
  // Read `bytes`, a multiple of 256, at the speed of memory: the baseline for matmul of one row.
  float (*read)(const void* data, int64_t bytes);
  // Multiply and add in registers, on all threads, as matmul of this type does at its best. Returns
  // the number of operations made: the limit that matmul of many rows is compared with.
  double (*peak)(int dtype);
};
