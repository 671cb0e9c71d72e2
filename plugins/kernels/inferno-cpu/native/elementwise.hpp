// Norms, rotary embedding, activations, embedding lookup and argmax.
#pragma once
#include <cstdint>

#include "dtype.hpp"

// (T, H, C): heads of tokens, with strides in elements.
struct Heads {
  const void* at;
  int64_t token_stride, head_stride, T, H, C;
};

struct Norm {
  const void* weight;
  bool wide;  // the weight is float32; otherwise it has the type of x
  float eps;
};

struct Elementwise {
  // y_TD = x_TD / rms(x_T) * weight_D over each head. A weight of x's type multiplies the quotient
  // rounded to that type, as torch's reference does; a wide weight multiplies it unrounded.
  void (*rms_norm)(int dtype, const Heads& x, const Norm& norm, void* y);
  // sum_TD = x_TD + delta_TD, y_TD = rms_norm(sum_TD).
  void (*add_rms_norm)(int dtype, const void* x, int64_t x_stride, const void* delta,
                       int64_t delta_stride, const Norm& norm, void* sum, void* y, int64_t T,
                       int64_t D);
  // y_TD = (s - mean(s)) / sqrt(variance(s) + eps) * weight_D + bias_D of each row s of x_TD +
  // delta_TD, rounded once. delta and bias may be null; the bias has the weight's type.
  void (*add_layer_norm)(int dtype, const void* x, int64_t x_stride, const void* delta,
                         int64_t delta_stride, const Norm& norm, const void* bias, void* y,
                         int64_t T, int64_t D);
  // Rotate the first 2 E channels of each head by the token's angles, in pairs (i, i + E) or, if
  // interleaved, (2 i, 2 i + 1), and copy the others.
  void (*rope)(int dtype, const Heads& x, const float* cos_TE, const float* sin_TE, int64_t E,
               bool interleaved, void* y);
  // rope(rms_norm(x)), each rounded as when called alone.
  void (*norm_rope)(int dtype, const Heads& x, const Norm& norm, const float* cos_TE,
                    const float* sin_TE, int64_t E, bool interleaved, void* y);
  // y_TI = silu(gate_TI) * up_TI, silu rounded first.
  void (*silu_mul)(int dtype, const void* gate, int64_t gate_stride, const void* up,
                   int64_t up_stride, void* y, int64_t T, int64_t I);
  // x_TI = x_TI * (1 + erf(x_TI / sqrt(2))) / 2, in place.
  void (*gelu)(int dtype, void* x, int64_t x_stride, int64_t T, int64_t I);
  // The lowest index of each row's maximum, ignoring NaN; -1 if the maximum is not finite.
  void (*argmax)(int dtype, const void* x, int64_t x_stride, int64_t* ids, int64_t T, int64_t V);
  // y_TD = table_VD[ids_T]; zeros for an id outside 0 .. V - 1.
  void (*gather)(int dtype, const int64_t* ids, const void* table, void* y, int64_t T, int64_t V,
                 int64_t D);
  // y_n = the sum of `count` parts, in their order and in float32, rounded once. y may be one of
  // them.
  void (*sum_parts)(int dtype, const void* const* parts, int count, void* y, int64_t n);
};
