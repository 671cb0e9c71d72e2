// Low-rank adapters in slots: y += up (down x), for each token by its slot.
// T tokens of I inputs and O outputs, S slots, R rows of all first matrices of a slot, N the rank.
#pragma once
#include <cstdint>

#include "dtype.hpp"

struct Adapters {
  // h_TR = down_SRI[slots_T] @ x_TI in float32; zeros for tokens of slot -1. down has x's type.
  void (*shrink)(int dtype, const void* x, int64_t x_stride, const void* down,
                 const int64_t* slots_T, float* h_TR, int64_t T, int64_t I, int64_t R);
  // y_TO += h_TN @ up_SNO[slots_T], summed in float32 and rounded once; nothing changes for tokens
  // of slot -1. up has y's type.
  void (*expand)(int dtype, const float* h, int64_t h_stride, const void* up,
                 const int64_t* slots_T, void* y, int64_t y_stride, int64_t T, int64_t N,
                 int64_t O);
};
