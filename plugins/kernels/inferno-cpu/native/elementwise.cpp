// Norms, rotary embedding, activations. Compiled once for each instruction set.
#include "elementwise.hpp"

#include <stdlib.h>

#include "layer_norm.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace {

INL int64_t min_rows(int64_t size) { return (light_grain() + size - 1) / size; }

template <class T>
INL T rounded(float x) {
  T t;
  from_float(&t, x);
  return t;
}

// 1 / rms of a row. Four independent sums hide the latency of an addition.
template <class T>
INL float inverse_rms(const T* x, int64_t D, float eps) {
  F32 squares[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  int64_t i = 0;
  for (; i + 64 <= D; i += 64)
    UNROLL_FOR (int j = 0; j < 4; j++) {
      F32 v = load(x + i + 16 * j);
      squares[j] = fma(v, v, squares[j]);
    }
  for (; i + 16 <= D; i += 16) squares[0] = fma(load(x + i), load(x + i), squares[0]);
  float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  for (; i < D; i++) total += to_float(x[i]) * to_float(x[i]);
  return 1.0f / __builtin_sqrtf(total / float(D) + eps);
}

// W: T, or float for a wide weight.
template <class T, class W>
void norm_row(const T* x, const W* weight, T* y, int64_t D, float eps) {
  constexpr bool kRounded = sizeof(W) == sizeof(T);
  const float scale = inverse_rms(x, D, eps);
  int64_t i = 0;
  for (; i + 16 <= D; i += 16) {
    F32 normed = load(x + i) * splat(scale);
    if (kRounded) {
      T whole[16];
      store(whole, normed);
      normed = load(whole);
    }
    store(y + i, normed * load(weight + i));
  }
  for (; i < D; i++) {
    float normed = to_float(x[i]) * scale;
    from_float(y + i, (kRounded ? to_float(rounded<T>(normed)) : normed) * to_float(weight[i]));
  }
}

template <class T>
INL void norm_row(const T* x, const Norm& norm, T* y, int64_t D) {
  if (norm.wide) return norm_row(x, (const float*)norm.weight, y, D, norm.eps);
  norm_row(x, (const T*)norm.weight, y, D, norm.eps);
}

template <class T>
INL const T* row_of(const Heads& x, int64_t i) {
  return (const T*)x.at + i / x.H * x.token_stride + i % x.H * x.head_stride;
}

void rms_norm(int dtype, const Heads& x, const Norm& norm, void* y) {
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    parallel_for(x.T * x.H, min_rows(x.C), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) norm_row(row_of<T>(x, i), norm, (T*)y + i * x.C, x.C);
    });
  });
}

template <class T>
void add_row(const T* x, const T* delta, T* y, int64_t D) {
  int64_t i = 0;
  for (; i + 16 <= D; i += 16) store(y + i, load(x + i) + load(delta + i));
  for (; i < D; i++) from_float(y + i, to_float(x[i]) + to_float(delta[i]));
}

void add_rms_norm(int dtype, const void* x, int64_t x_stride, const void* delta,
                  int64_t delta_stride, const Norm& norm, void* sums, void* y, int64_t rows,
                  int64_t D) {
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    parallel_for(rows, min_rows(D), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++) {
        T* both = (T*)sums + t * D;
        add_row((const T*)x + t * x_stride, (const T*)delta + t * delta_stride, both, D);
        norm_row(both, norm, (T*)y + t * D, D);
      }
    });
  });
}

void add_layer_norm(int dtype, const void* x, int64_t x_stride, const void* delta,
                    int64_t delta_stride, const Norm& norm, const void* bias, void* y, int64_t rows,
                    int64_t D) {
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    parallel_for(rows, min_rows(D), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++) {
        const T *x_row = (const T*)x + t * x_stride,
                *delta_row = delta ? (const T*)delta + t * delta_stride : nullptr;
        T* y_row = (T*)y + t * D;
        layer_norm_row(x_row, delta_row, norm, bias, y_row, D);
      }
    });
  });
}

template <class T>
void rotate_row(const T* x, const float* cos, const float* sin, int64_t E, T* y, int64_t C) {
  int64_t i = 0;
  for (; i + 16 <= E; i += 16) {
    F32 a = load(x + i), b = load(x + E + i), c = load(cos + i), s = load(sin + i);
    store(y + i, a * c - b * s);
    store(y + E + i, b * c + a * s);
  }
  for (; i < E; i++) {
    float a = to_float(x[i]), b = to_float(x[E + i]);
    from_float(y + i, a * cos[i] - b * sin[i]);
    from_float(y + E + i, b * cos[i] + a * sin[i]);
  }
  memcpy(y + 2 * E, x + 2 * E, size_t(C - 2 * E) * sizeof(T));
}

template <class T>
void rotate_row_interleaved(const T* x, const float* cos, const float* sin, int64_t E, T* y,
                            int64_t C) {
  int64_t i = 0;
  for (; i + 16 <= E; i += 16) {
    float both[32], a[16], b[16];
    UNROLL_FOR (int half = 0; half < 2; half++)
      store(both + 16 * half, load(x + 2 * i + 16 * half));
    for (int j = 0; j < 16; j++) a[j] = both[2 * j], b[j] = both[2 * j + 1];
    F32 c = load(cos + i), s = load(sin + i), rotated = load(a) * c - load(b) * s;
    store(b, load(b) * c + load(a) * s);
    store(a, rotated);
    for (int j = 0; j < 16; j++) both[2 * j] = a[j], both[2 * j + 1] = b[j];
    UNROLL_FOR (int half = 0; half < 2; half++)
      store(y + 2 * i + 16 * half, load(both + 16 * half));
  }
  for (; i < E; i++) {
    float a = to_float(x[2 * i]), b = to_float(x[2 * i + 1]);
    from_float(y + 2 * i, a * cos[i] - b * sin[i]);
    from_float(y + 2 * i + 1, b * cos[i] + a * sin[i]);
  }
  memcpy(y + 2 * E, x + 2 * E, size_t(C - 2 * E) * sizeof(T));
}

template <class T>
INL void rotate_row(bool interleaved, const T* x, const float* cos, const float* sin, int64_t E,
                    T* y, int64_t C) {
  interleaved ? rotate_row_interleaved(x, cos, sin, E, y, C) : rotate_row(x, cos, sin, E, y, C);
}

void rope(int dtype, const Heads& x, const float* cos_TE, const float* sin_TE, int64_t E,
          bool interleaved, void* y) {
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    parallel_for(x.T * x.H, min_rows(x.C), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++)
        rotate_row(interleaved, row_of<T>(x, i), cos_TE + i / x.H * E, sin_TE + i / x.H * E, E,
                   (T*)y + i * x.C, x.C);
    });
  });
}

constexpr int64_t kMaxHeadDim = 512;  // largest head that is normed and rotated in one pass

void norm_rope(int dtype, const Heads& x, const Norm& norm, const float* cos_TE,
               const float* sin_TE, int64_t E, bool interleaved, void* y) {
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    parallel_for(x.T * x.H, min_rows(x.C), [&](int64_t begin, int64_t end) {
      T normed[kMaxHeadDim];
      for (int64_t i = begin; i < end; i++) {
        norm_row(row_of<T>(x, i), norm, normed, x.C);
        rotate_row(interleaved, (const T*)normed, cos_TE + i / x.H * E, sin_TE + i / x.H * E, E,
                   (T*)y + i * x.C, x.C);
      }
    });
  });
}

template <class T>
void silu_mul_row(const T* gate, const T* up, T* y, int64_t I) {
  for (int64_t i = 0; i < I; i += 16) {
    const bool whole = i + 16 <= I;
    T gates[16] = {}, ups[16] = {}, out[16];
    if (!whole)
      memcpy(gates, gate + i, size_t(I - i) * sizeof(T)),
          memcpy(ups, up + i, size_t(I - i) * sizeof(T));
    F32 g = load(whole ? gate + i : gates);
    store(out, g / (splat(1.0f) + exp(splat(0.0f) - g)));
    F32 product = load(out) * load(whole ? up + i : ups);
    if (whole) {
      store(y + i, product);
    } else {
      store(out, product);
      memcpy(y + i, out, size_t(I - i) * sizeof(T));
    }
  }
}

void silu_mul(int dtype, const void* gate, int64_t gate_stride, const void* up, int64_t up_stride,
              void* y, int64_t rows, int64_t I) {
  // Split rows: a single token may have a long one.
  const int64_t chunk = 1024, chunks = (I + chunk - 1) / chunk;
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    parallel_for(rows * chunks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        int64_t t = i / chunks, at = i % chunks * chunk;
        silu_mul_row((const T*)gate + t * gate_stride + at, (const T*)up + t * up_stride + at,
                     (T*)y + t * I + at, I - at < chunk ? I - at : chunk);
      }
    });
  });
}

// x * (1 + erf(x / sqrt(2))) / 2. Of z = |x| / sqrt(2), 1 - erf(z) is t e^(-z^2 + p(t)) with t = 1 /
// (1 + z / 2), p by Chebyshev polynomials, to 1.2e-7 of itself (Numerical Recipes, erfcc).
INL F32 gelu_of(F32 x) {
  const F32 z = abs(x) * splat(0.70710678f);
  const F32 t = splat(1.0f) / fma(z, splat(0.5f), splat(1.0f));
  constexpr float factors[] = {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                               0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
  F32 p = splat(0.17087277f);
  UNROLL_FOR (int i = 0; i < 9; i++) p = fma(p, t, splat(factors[i]));
  const F32 far = x * splat(0.5f) * t * exp(p - z * z);  // x times the smaller of both areas
  return max(x, splat(0.0f)) - abs(far);                 // NaN where x is not finite
}

template <class T>
void gelu_row(T* x, int64_t I) {
  int64_t i = 0;
  for (; i + 16 <= I; i += 16) store(x + i, gelu_of(load(x + i)));
  if (i == I) return;
  T last[16] = {};
  memcpy(last, x + i, size_t(I - i) * sizeof(T));
  store(last, gelu_of(load(last)));
  memcpy(x + i, last, size_t(I - i) * sizeof(T));
}

void gelu(int dtype, void* x, int64_t x_stride, int64_t rows, int64_t I) {
  const int64_t chunk = 1024, chunks = (I + chunk - 1) / chunk;
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    parallel_for(rows * chunks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const int64_t at = i % chunks * chunk;
        gelu_row((T*)x + i / chunks * x_stride + at, I - at < chunk ? I - at : chunk);
      }
    });
  });
}

// The largest of x, or NaN if any is.
template <class T>
float max_of(const T* x, int64_t n) {
  const float lowest = -__builtin_inff();
  const F32 zero = splat(0.0f), least = splat(-3.4028234e38f);
  F32 top[4] = {splat(lowest), splat(lowest), splat(lowest), splat(lowest)};
  F32 odd[2] = {zero, zero};  // 0, or NaN once x had NaN (or +inf, which is not the best either)
  int64_t i = 0;
  // max(a, b) is b if either is NaN.
  for (; i + 64 <= n; i += 64)
    UNROLL_FOR (int j = 0; j < 4; j++) {
      const F32 here = load(x + i + 16 * j);
      top[j] = max(here, top[j]);
      odd[j % 2] = fma(max(least, here), zero, odd[j % 2]);  // -inf is legal
    }
  float best = largest(max(max(top[0], top[1]), max(top[2], top[3])));
  float broken = sum(odd[0] + odd[1]);
  for (; i < n; i++) {
    const float here = to_float(x[i]);
    best = here > best ? here : best;
    broken = here == here ? broken : here;
  }
  return best + broken;
}

constexpr int64_t kChunk = 4096;
struct Tops {
  float* values = nullptr;
  int64_t capacity = 0;
  ~Tops() { free(values); }
};
thread_local Tops tops;

void argmax(int dtype, const void* x, int64_t x_stride, int64_t* ids, int64_t rows, int64_t V) {
  const int64_t chunks = (V + kChunk - 1) / kChunk;
  if (rows * chunks > tops.capacity) {
    free(tops.values);
    tops.capacity = 2 * rows * chunks;
    tops.values = (float*)malloc(size_t(tops.capacity) * sizeof(float));
    if (!tops.values) abort();
  }
  float* found = tops.values;
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    auto chunk_of = [&](int64_t t, int64_t c) { return (const T*)x + t * x_stride + c * kChunk; };
    auto size_of = [&](int64_t c) { return V - c * kChunk < kChunk ? V - c * kChunk : kChunk; };
    parallel_for(rows * chunks, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++)
        found[i] = max_of(chunk_of(i / chunks, i % chunks), size_of(i % chunks));
    });
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++) {
        int64_t best = 0;
        float broken = 0;
        for (int64_t c = 0; c < chunks; c++) {
          const float here = found[t * chunks + c];
          if (here > found[t * chunks + best]) best = c;
          broken = here == here ? broken : here;
        }
        const float top = found[t * chunks + best] + broken;
        const T* chunk = chunk_of(t, best);
        ids[t] = -1;
        if (top - top == 0.0f)
          for (int64_t i = 0; i < size_of(best); i++)
            if (to_float(chunk[i]) == top) {
              ids[t] = best * kChunk + i;
              break;
            }
      }
    });
  });
}

void gather(int dtype, const int64_t* ids, const void* table, void* y, int64_t rows, int64_t V,
            int64_t D) {
  const int64_t bytes = D * (dtype == kFloat32 ? 4 : 2);
  parallel_for(rows, min_rows(D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      char* to = (char*)y + t * bytes;
      if (ids[t] >= 0 && ids[t] < V) {
        memcpy(to, (const char*)table + ids[t] * bytes, size_t(bytes));
      } else {
        memset(to, 0, size_t(bytes));
      }
    }
  });
}

void sum_parts(int dtype, const void* const* parts, int count, void* y, int64_t n) {
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    auto part = [&](int i) { return (const T*)parts[i]; };
    parallel_for(n, light_grain(), [&](int64_t begin, int64_t end) {
      int64_t i = begin;
      for (; i + 16 <= end; i += 16) {
        F32 total = load(part(0) + i);
        for (int p = 1; p < count; p++) total = total + load(part(p) + i);
        store((T*)y + i, total);
      }
      for (; i < end; i++) {
        float total = to_float(part(0)[i]);
        for (int p = 1; p < count; p++) total += to_float(part(p)[i]);
        from_float((T*)y + i, total);
      }
    });
  });
}

}  // namespace

extern const Elementwise INFERNO_EXPORT(elementwise);
const Elementwise INFERNO_EXPORT(elementwise) = {
    rms_norm, add_rms_norm, add_layer_norm, rope,   norm_rope,
    silu_mul, gelu,         argmax,         gather, sum_parts};
