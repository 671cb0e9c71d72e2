// Norms, rotary embedding, activations. Compiled once for each instruction set.
#include "elementwise.hpp"

#include "parallel.hpp"
#include "simd.hpp"

namespace {

constexpr int64_t kRowsPerThread = 4;  // handing over less costs more than it saves

template <class T>
INL T rounded(float x) {
  T t;
  from_float(&t, x);
  return t;
}

template <class T>
void rms_norm_row(const T* x, const T* weight, T* y, int64_t D, float eps) {
  F32 squares = splat(0.0f);
  int64_t i = 0;
  for (; i + 16 <= D; i += 16) squares = fma(load(x + i), load(x + i), squares);
  float total = sum(squares);
  for (; i < D; i++) total += to_float(x[i]) * to_float(x[i]);
  float scale = 1.0f / __builtin_sqrtf(total / float(D) + eps);
  for (i = 0; i + 16 <= D; i += 16) {
    store(y + i, load(x + i) * splat(scale));
    store(y + i, load(y + i) * load(weight + i));
  }
  for (; i < D; i++) from_float(y + i, to_float(rounded<T>(to_float(x[i]) * scale)) * to_float(weight[i]));
}

template <class T>
void rms_norm_of(const void* x, int64_t x_stride, const void* weight, void* y, int64_t rows, int64_t D, float eps) {
  parallel_for(rows, kRowsPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) rms_norm_row((const T*)x + t * x_stride, (const T*)weight, (T*)y + t * D, D, eps);
  });
}

void rms_norm(int dtype, const void* x, int64_t x_stride, const void* weight, void* y, int64_t T, int64_t D, float eps) {
  switch (dtype) {
    case kFloat32: return rms_norm_of<float>(x, x_stride, weight, y, T, D, eps);
    case kBFloat16: return rms_norm_of<bf16>(x, x_stride, weight, y, T, D, eps);
    default: return rms_norm_of<f16>(x, x_stride, weight, y, T, D, eps);
  }
}

}  // namespace

extern const Elementwise INFERNO_EXPORT(elementwise);
const Elementwise INFERNO_EXPORT(elementwise) = {rms_norm};
