// Matrices of float32, bfloat16 and float16, in panels of sixteen rows (gemm_float.hpp), the last filled up with zeros.
#pragma once
#include <cstdint>

#include "dtype.hpp"

struct DenseLinear {
  // panels (at a multiple of 64 bytes) = w_NK (rows contiguous, row_stride elements apart). Panels take
  // ceil(N/16) * 16 * K elements, K being made even if they are bfloat16.
  void (*repack)(int dtype, const void* w, int64_t row_stride, void* panels, int64_t N, int64_t K);
  // y_MN = x_MK @ w_NK.T + bias_N. Rows of x are x_stride apart, those of y are dense and of x's type; bias is float32 or null.
  // Sums are float32. Products are exact unless they leave float32's normal numbers (see dot2).
  void (*matmul)(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels, const float* bias, void* y,
                 int64_t M, int64_t N, int64_t K);
  // The rows of w are E matrices of N rows each, one after the other: rows starts[e] to starts[e + 1] of x times the e-th, to the
  // same rows of y (starts[E], N); bias is (E, N). starts[0] = 0, and starts never fall.
  void (*grouped)(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels, const float* bias, void* y,
                  const int32_t* starts, int64_t E, int64_t N, int64_t K);
  // ids_M = the largest of each row of x_MK @ w_NK.T rounded to x's type: the lowest id among equals, NaN never, -1 if it is
  // not finite.
  void (*argmax)(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels, int64_t* ids, int64_t M,
                 int64_t N, int64_t K);
  // y_TK = w_NK[ids_T]. False, and y is not all written, if an id is not one of a row.
  bool (*rows)(int w_dtype, int y_dtype, const void* panels, const int64_t* ids, void* y, int64_t T, int64_t N, int64_t K);
  // Reads every byte (a multiple of 256), as fast as this machine reads: what matmul of one row is measured against.
  float (*read)(const void* data, int64_t bytes);
};
