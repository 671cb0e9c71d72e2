// Norms, rotary embedding, activations.
#pragma once
#include <cstdint>

#include "dtype.hpp"

struct Elementwise {
  // y_TD = x_TD / rms(x_T) * weight_D. Rounded to x's type before the weight is applied, as torch's reference does.
  // Rows of x are x_stride apart, those of y are dense.
  void (*rms_norm)(int dtype, const void* x, int64_t x_stride, const void* weight, void* y, int64_t T, int64_t D, float eps);
};
