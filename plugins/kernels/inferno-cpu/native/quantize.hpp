// Quantizing of dense matrices: to ggml's blocks, as its own quantizer does, and to groups of
// 4-bit integers.
#pragma once
#include <cstdint>

#include "dtype.hpp"

// Layouts to quantize to. Those that packed.hpp has too have the same numbers.
enum {
  kToQ8_0, kToQ4_0, kToQ4_1, kToQ5_0, kToQ5_1, kToQ2_K, kToQ3_K, kToQ4_K, kToQ5_K, kToQ6_K,
  kToInt4_32, kToInt4_64, kToInt4_128, kToIQ4_NL,
};

struct Quantizer {
  // Quantize the matrix w_NK to `blocks`, one row after the other; K is divisible by the layout's
  // block. importance_K, float32, weighs the squared errors of the columns; null: all alike.
  // For int4, `blocks` holds the codes, two in a byte, and scales and zeros (N, K / group) float16.
  void (*quantize)(int layout, int dtype, const void* w, const float* importance, uint8_t* blocks,
                   uint16_t* scales, uint16_t* zeros, int64_t N, int64_t K);
};
