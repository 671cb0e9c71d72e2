// Low-rank adapters beside any matrix. Compiled once for each instruction set.
#include "adapters.hpp"

#include "parallel.hpp"
#include "simd.hpp"

namespace {

constexpr int64_t kGrain = 65536;  // minimum products per thread
INL int64_t min_tokens(int64_t products) { return (kGrain + products - 1) / products; }

// The products of TOKENS tokens of one slot with ROWS rows. A product is one sum over I in order,
// whatever the tile: a token's result does not depend on its neighbours.
template <int TOKENS, int ROWS, class A>
INL void products(const A* x, int64_t x_stride, const A* down, float* h, int64_t R, int64_t I) {
  F32 sums[TOKENS][ROWS];
  UNROLL_FOR (int t = 0; t < TOKENS; t++)
    UNROLL_FOR (int r = 0; r < ROWS; r++) sums[t][r] = splat(0.0f);
  int64_t i = 0;
  for (; i + 16 <= I; i += 16) {
    F32 v[TOKENS];
    UNROLL_FOR (int t = 0; t < TOKENS; t++) v[t] = load(x + t * x_stride + i);
    UNROLL_FOR (int r = 0; r < ROWS; r++) {
      const F32 w = load(down + r * I + i);
      UNROLL_FOR (int t = 0; t < TOKENS; t++) sums[t][r] = fma(w, v[t], sums[t][r]);
    }
  }
  UNROLL_FOR (int t = 0; t < TOKENS; t++)
    UNROLL_FOR (int r = 0; r < ROWS; r++) {
      float total = sum(sums[t][r]);
      for (int64_t k = i; k < I; k++)
        total = __builtin_fmaf(to_float(x[t * x_stride + k]), to_float(down[r * I + k]), total);
      h[t * R + r] = total;
    }
}

template <int TOKENS, class A>
void shrink_tile(const A* x, int64_t x_stride, const A* down, float* h, int64_t R, int64_t I) {
  constexpr int kRows = TOKENS == 1 ? 8 : 4;
  int64_t r = 0;
  for (; r + kRows <= R; r += kRows)
    products<TOKENS, kRows>(x, x_stride, down + r * I, h + r, R, I);
  for (; r < R; r++) products<TOKENS, 1>(x, x_stride, down + r * I, h + r, R, I);
}

void shrink(int dtype, const void* x, int64_t x_stride, const void* down, const int64_t* slots_T,
            float* h_TR, int64_t T, int64_t I, int64_t R) {
  with_type(dtype, [&](auto element) {
    using A = decltype(element);
    parallel_for(T, min_tokens(R * I), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end;) {
        const A* row = (const A*)x + t * x_stride;
        float* h = h_TR + t * R;
        const int64_t slot = slots_T[t];
        if (slot < 0) {
          memset(h, 0, size_t(R) * sizeof(float));
          t++;
        } else if (t + 1 < end && slots_T[t + 1] == slot) {
          shrink_tile<2>(row, x_stride, (const A*)down + slot * R * I, h, R, I);
          t += 2;
        } else {
          shrink_tile<1>(row, x_stride, (const A*)down + slot * R * I, h, R, I);
          t++;
        }
      }
    });
  });
}

// Add a slot's products to LANES * 16 outputs of TOKENS tokens.
template <int TOKENS, int LANES, class A>
INL void add_products(const float* h, int64_t h_stride, const A* up, A* y, int64_t y_stride,
                      int64_t N, int64_t O) {
  F32 sums[TOKENS][LANES];
  UNROLL_FOR (int t = 0; t < TOKENS; t++)
    UNROLL_FOR (int j = 0; j < LANES; j++) sums[t][j] = splat(0.0f);
  for (int64_t n = 0; n < N; n++)
    UNROLL_FOR (int j = 0; j < LANES; j++) {
      const F32 w = load(up + n * O + 16 * j);
      UNROLL_FOR (int t = 0; t < TOKENS; t++)
        sums[t][j] = fma(w, splat(h[t * h_stride + n]), sums[t][j]);
    }
  UNROLL_FOR (int t = 0; t < TOKENS; t++)
    UNROLL_FOR (int j = 0; j < LANES; j++) {
      A* to = y + t * y_stride + 16 * j;
      store(to, load(to) + sums[t][j]);
    }
}

template <int TOKENS, class A>
void expand_tile(const float* h, int64_t h_stride, const A* up, A* y, int64_t y_stride, int64_t N,
                 int64_t O) {
  constexpr int kLanes = TOKENS == 1 ? 4 : 2;
  int64_t o = 0;
  for (; o + 16 * kLanes <= O; o += 16 * kLanes)
    add_products<TOKENS, kLanes>(h, h_stride, up + o, y + o, y_stride, N, O);
  for (; o + 16 <= O; o += 16)
    add_products<TOKENS, 1>(h, h_stride, up + o, y + o, y_stride, N, O);
  for (; o < O; o++)
    for (int t = 0; t < TOKENS; t++) {
      float total = 0;
      for (int64_t n = 0; n < N; n++)
        total = __builtin_fmaf(to_float(up[n * O + o]), h[t * h_stride + n], total);
      A* to = y + t * y_stride + o;
      from_float(to, to_float(*to) + total);
    }
}

void expand(int dtype, const float* h, int64_t h_stride, const void* up, const int64_t* slots_T,
            void* y, int64_t y_stride, int64_t T, int64_t N, int64_t O) {
  with_type(dtype, [&](auto element) {
    using A = decltype(element);
    parallel_for(T, min_tokens(N * O), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end;) {
        const int64_t slot = slots_T[t];
        const A* own = (const A*)up + slot * N * O;
        A* row = (A*)y + t * y_stride;
        if (slot < 0) {
          t++;
        } else if (t + 1 < end && slots_T[t + 1] == slot) {
          expand_tile<2>(h + t * h_stride, h_stride, own, row, y_stride, N, O);
          t += 2;
        } else {
          expand_tile<1>(h + t * h_stride, h_stride, own, row, y_stride, N, O);
          t++;
        }
      }
    });
  });
}

}  // namespace

extern const Adapters INFERNO_EXPORT(adapters);
const Adapters INFERNO_EXPORT(adapters) = {shrink, expand};
