// Layer norm of a row, or of the sum of two, in float32 whatever the type of the elements is.
#pragma once
#include "elementwise.hpp"
#include "simd.hpp"

namespace {

// The sum over a row of what `many` returns for the sixteen elements from i on, and `one` for one.
template <class Many, class One>
INL float sum_of(int64_t D, const Many& many, const One& one) {
  F32 sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  int64_t i = 0;
  for (; i + 64 <= D; i += 64)
    UNROLL_FOR (int j = 0; j < 4; j++) sums[j] = sums[j] + many(i + 16 * j);
  for (; i + 16 <= D; i += 16) sums[0] = sums[0] + many(i);
  float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < D; i++) total += one(i);
  return total;
}

// W: T, or float for a wide weight. The sums are computed three times, from the cache, not kept.
template <bool kAdd, class T, class W>
void layer_norm_row(const T* x, const T* delta, const W* weight, const W* bias, T* y, int64_t D,
                    float eps) {
  auto many = [=](int64_t i) { return kAdd ? load(x + i) + load(delta + i) : load(x + i); };
  auto one = [=](int64_t i) { return kAdd ? to_float(x[i]) + to_float(delta[i]) : to_float(x[i]); };
  const float mean = sum_of(D, many, one) / float(D);
  const F32 means = splat(mean);
  const float squares = sum_of(
      D,
      [=](int64_t i) {
        F32 v = many(i) - means;
        return v * v;
      },
      [=](int64_t i) { return (one(i) - mean) * (one(i) - mean); });
  const float scale = 1.0f / __builtin_sqrtf(squares / float(D) + eps);
  const F32 scales = splat(scale);
  int64_t i = 0;
  for (; i + 16 <= D; i += 16) {
    const F32 normed = (many(i) - means) * scales;
    store(y + i, fma(normed, load(weight + i), bias ? load(bias + i) : splat(0.0f)));
  }
  for (; i < D; i++) {
    const float normed = (one(i) - mean) * scale;
    from_float(y + i, normed * to_float(weight[i]) + (bias ? to_float(bias[i]) : 0.0f));
  }
}

template <class T>
INL void layer_norm_row(const T* x, const T* delta, const Norm& norm, const void* bias, T* y,
                        int64_t D) {
  auto row = [&](auto weight) {
    auto shift = (decltype(weight))bias;
    if (delta) return layer_norm_row<true>(x, delta, weight, shift, y, D, norm.eps);
    layer_norm_row<false>(x, delta, weight, shift, y, D, norm.eps);
  };
  if (norm.wide) return row((const float*)norm.weight);
  row((const T*)norm.weight);
}

}  // namespace
