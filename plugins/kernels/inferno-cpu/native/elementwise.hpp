// Norms, rotary embedding, activations, and the two ends of a model: rows of a table, largest logits.
#pragma once
#include <cstdint>

#include "dtype.hpp"

// Heads of tokens: (T, H, C), tokens and heads any distance apart (in elements).
struct Heads {
  const void* at;
  int64_t token_stride, head_stride, T, H, C;
};

struct Norm {
  const void* weight;
  bool wide;  // the weight is float32, else of x's type
  float eps;
};

struct Elementwise {
  // y_TD = x_TD / rms(x_T) * weight_D, for T rows x_stride apart or for heads. Rounded to x's type before a weight of that type is
  // applied, as torch's reference does; with a wide weight only then.
  void (*rms_norm)(int dtype, const Heads& x, const Norm& norm, void* y);
  // sum_TD = x_TD + delta_TD, y_TD = rms_norm(sum_TD).
  void (*add_rms_norm)(int dtype, const void* x, int64_t x_stride, const void* delta, int64_t delta_stride, const Norm& norm,
                       void* sum, void* y, int64_t T, int64_t D);
  // The first 2 E channels of each head turned by the token's angles: pairs are (i, i + E), or, interleaved, (2 i, 2 i + 1). The
  // others are copied.
  void (*rope)(int dtype, const Heads& x, const float* cos_TE, const float* sin_TE, int64_t E, bool interleaved, void* y);
  // rope(rms_norm(x)), each rounded as it is alone.
  void (*norm_rope)(int dtype, const Heads& x, const Norm& norm, const float* cos_TE, const float* sin_TE, int64_t E,
                    bool interleaved, void* y);
  // y_TI = silu(gate_TI) * up_TI, silu rounded first.
  void (*silu_mul)(int dtype, const void* gate, int64_t gate_stride, const void* up, int64_t up_stride, void* y, int64_t T,
                   int64_t I);
  // The first of each row's largest numbers; NaN is none. -1 where the largest is not finite.
  void (*argmax)(int dtype, const void* x, int64_t x_stride, int64_t* ids, int64_t T, int64_t V);
  // Rows of a table; zeros for an id that is none.
  void (*gather)(int dtype, const int64_t* ids, const void* table, void* y, int64_t T, int64_t V, int64_t D);
};
