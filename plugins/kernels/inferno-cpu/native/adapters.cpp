// Low-rank adapters beside any matrix. Compiled once for each instruction set.
//
// Decode steps read more of adapters than they compute with them, from memory that no loop has
// touched since the last step. So tokens are grouped by slot, once in a step, each tile of a slot's
// matrix is read once for up to four of them, and the next tile is prefetched meanwhile.
#include "adapters.hpp"

#include "parallel.hpp"
#include "scratch.hpp"
#include "simd.hpp"

namespace {

constexpr int64_t kGrain = 65536;  // minimum products per thread
INL int64_t min_tokens(int64_t products) { return (kGrain + products - 1) / products; }

constexpr int64_t kNear = 10 << 10;  // the most bytes of rows that are prefetched as a whole

constexpr int64_t kMost = 128;  // tokens that are grouped at once

constexpr int kTile = 4;  // the most tokens that are multiplied at once
// By how many rows of a matrix, or vectors of a row: as many sums as the registers hold.
constexpr int side(int tokens) {
#if defined(INFERNO_AVX512)
  return tokens == 1 ? 8 : 4;
#else
  return tokens > 2 ? 1 : 4 / tokens;
#endif
}

// Tokens by slot, in their order within a slot; those without a slot come first.
struct Grouped {
  int64_t given[kMost];
  int32_t token[kMost];
  int64_t slot[kMost];
  int64_t count = 0;

  // Matrices of one step have the same tokens: they are sorted once.
  bool holds(const int64_t* slots_T, int64_t n) const {
    return n == count && memcmp(given, slots_T, size_t(n) * sizeof(int64_t)) == 0;
  }

  void sort(const int64_t* slots_T, int64_t n) {
    memcpy(given, slots_T, size_t(n) * sizeof(int64_t));
    count = n;
    for (int64_t i = 0; i < n; i++) {  // prompts are sorted already
      const int64_t own = given[i];
      int64_t at = i;
      for (; at > 0 && slot[at - 1] > own; at--) {
        slot[at] = slot[at - 1];
        token[at] = token[at - 1];
      }
      slot[at] = own;
      token[at] = int32_t(i);
    }
  }

  // Tokens of one slot from `at`, before `end`: at most a tile.
  int tile(int64_t at, int64_t end) const {
    int n = 1;
    while (n < kTile && at + n < end && slot[at + n] == slot[at]) n++;
    return n;
  }
};

inline Grouped& last_grouped() {
  static thread_local Grouped last;
  return last;
}

// Call body(grouped, first, begin, end) on ranges of grouped tokens, counted from `first`, in
// parallel.
template <class Body>
INL void by_slot(const int64_t* slots_T, int64_t T, int64_t products, const Body& body) {
  Grouped& grouped = last_grouped();
  for (int64_t first = 0; first < T; first += kMost) {
    const int64_t n = min(T - first, kMost);
    if (!grouped.holds(slots_T + first, n)) grouped.sort(slots_T + first, n);
    parallel_for(n, min_tokens(products),
                 [&](int64_t begin, int64_t end) { body(grouped, first, begin, end); });
  }
}

template <class A>
INL void prefetch(const A* p) { __builtin_prefetch(p, 0, 3); }

// Thirty-two elements in two vectors: halves or, of bf16, those at even places and at odd ones,
// which takes half of the instructions.
struct Two {
  F32 a, b;
};
template <class A>
INL Two load_two(const A* p) { return {load(p), load(p + 16)}; }
INL Two load_two(const bf16* p) {
  const Pairs pairs = load_pairs(p);
  return {first(pairs), second(pairs)};
}

// The products of TOKENS tokens of one slot with ROWS rows. A product is one sum over I in order,
// whatever the tile: a token's result does not depend on its neighbours. x is as `in_twos` has it.
// `ahead`: ROWS rows that are read next, which are prefetched if AHEAD.
template <int TOKENS, int ROWS, bool AHEAD, class A>
INL void products(const float* const* x, const A* down, const A* ahead, float* const* h, int64_t r,
                  int64_t I) {
  F32 sums[TOKENS][ROWS];
  UNROLL_FOR (int t = 0; t < TOKENS; t++)
    UNROLL_FOR (int k = 0; k < ROWS; k++) sums[t][k] = splat(0.0f);
  int64_t i = 0;
  for (; i + 32 <= I; i += 32) {
    Two w[ROWS];
    UNROLL_FOR (int k = 0; k < ROWS; k++) {
      if (AHEAD) prefetch(ahead + k * I + i);
      if (AHEAD && sizeof(A) == 4) prefetch(ahead + k * I + i + 16);
      w[k] = load_two(down + k * I + i);
    }
    UNROLL_FOR (int t = 0; t < TOKENS; t++) {
      const F32 a = load(x[t] + i), b = load(x[t] + i + 16);
      UNROLL_FOR (int k = 0; k < ROWS; k++) sums[t][k] = fma(w[k].a, a, sums[t][k]);
      UNROLL_FOR (int k = 0; k < ROWS; k++) sums[t][k] = fma(w[k].b, b, sums[t][k]);
    }
  }
  if (i + 16 <= I) {
    UNROLL_FOR (int k = 0; k < ROWS; k++) {
      const F32 w = load(down + k * I + i);
      UNROLL_FOR (int t = 0; t < TOKENS; t++) sums[t][k] = fma(w, load(x[t] + i), sums[t][k]);
    }
    i += 16;
  }
  UNROLL_FOR (int t = 0; t < TOKENS; t++)
    UNROLL_FOR (int k = 0; k < ROWS; k++) {
      float total = sum(sums[t][k]);
      for (int64_t j = i; j < I; j++)
        total = __builtin_fmaf(x[t][j], to_float(down[k * I + j]), total);
      h[t][r + k] = total;
    }
}

// `next`: the matrix that is read after this one.
template <int TOKENS, int ROWS, bool AHEAD = true, class A>
INL void shrink_tile(const float* const* x, const A* down, const A* next, float* const* h,
                     int64_t R, int64_t I) {
  int64_t r = 0;
  for (; r + ROWS <= R; r += ROWS) {
    const A* ahead = r + 2 * ROWS <= R ? down + (r + ROWS) * I : next;
    products<TOKENS, ROWS, AHEAD>(x, down + r * I, ahead, h, r, I);
  }
  for (; r < R; r++) products<TOKENS, 1, AHEAD>(x, down + r * I, next, h, r, I);
}

// As floats, each thirty-two in the order of `load_two`.
INL const float* in_twos(const float* x, float*, int64_t) { return x; }
template <class A>
INL const float* in_twos(const A* x, float* to, int64_t I) {
  int64_t i = 0;
  for (; i + 32 <= I; i += 32) {
    const Two two = load_two(x + i);
    store(to + i, two.a);
    store(to + i + 16, two.b);
  }
  for (; i < I; i++) to[i] = to_float(x[i]);
  return to;
}

// A function that is not inlined for each number of tokens.
template <int TOKENS, class A>
void shrink_tokens(const float* const* x, const A* down, const A* next, float* const* h, int64_t R,
                   int64_t I) {
  constexpr int kRows = side(TOKENS);
  if (TOKENS == 1 && kRows * I * int64_t(sizeof(A)) > kNear)  // by the processor's own prefetches
    shrink_tile<TOKENS, 8, false>(x, down, next, h, R, I);
  else
    shrink_tile<TOKENS, kRows>(x, down, next, h, R, I);
}

template <class A>
void shrink_range(const Grouped& tokens, int64_t begin, int64_t end, const A* x, int64_t x_stride,
                  const A* down, float* h, int64_t R, int64_t I) {
  float* floats = (float*)scratch<0>(size_t(kTile) * size_t(I) * sizeof(float));
  const float* in[kTile];
  float* out[kTile];
  for (int64_t at = begin; at < end;) {
    const int64_t slot = tokens.slot[at];
    if (slot < 0) {
      memset(h + tokens.token[at++] * R, 0, size_t(R) * sizeof(float));
      continue;
    }
    const int count = tokens.tile(at, end);
    for (int t = 0; t < count; t++) {
      in[t] = in_twos(x + tokens.token[at + t] * x_stride, floats + t * I, I);
      out[t] = h + tokens.token[at + t] * R;
    }
    at += count;
    const A* own = down + slot * R * I;
    const A* next = at < end ? down + tokens.slot[at] * R * I : own;
    if (count == 1) shrink_tokens<1>(in, own, next, out, R, I);
    if (count == 2) shrink_tokens<2>(in, own, next, out, R, I);
    if (count == 3) shrink_tokens<3>(in, own, next, out, R, I);
    if (count == 4) shrink_tokens<4>(in, own, next, out, R, I);
  }
}

void shrink(int dtype, const void* x, int64_t x_stride, const void* down, const int64_t* slots_T,
            float* h_TR, int64_t T, int64_t I, int64_t R) {
  with_type(dtype, [&](auto element) {
    using A = decltype(element);
    by_slot(slots_T, T, R * I,
            [&](const Grouped& tokens, int64_t first, int64_t begin, int64_t end) {
              shrink_range(tokens, begin, end, (const A*)x + first * x_stride, x_stride,
                           (const A*)down, h_TR + first * R, R, I);
            });
  });
}

// Add a slot's products to LANES * 16 outputs of TOKENS tokens.
template <int TOKENS, int LANES, class A>
INL void add_products(const float* const* h, const A* up, A* const* y, int64_t o, int64_t N,
                      int64_t O) {
  F32 sums[TOKENS][LANES];
  UNROLL_FOR (int t = 0; t < TOKENS; t++)
    UNROLL_FOR (int j = 0; j < LANES; j++) sums[t][j] = splat(0.0f);
  for (int64_t n = 0; n < N; n++) {
    const A* row = up + n * O + o;
    F32 w[LANES];
    UNROLL_FOR (int j = 0; j < LANES; j++) {
      // Tiles two further; past the last one these are the next row's.
      if (j % int(4 / sizeof(A)) == 0) prefetch(row + (2 * LANES + j) * 16);
      w[j] = load(row + 16 * j);
    }
    UNROLL_FOR (int t = 0; t < TOKENS; t++) {
      const F32 own = splat(h[t][n]);
      UNROLL_FOR (int j = 0; j < LANES; j++) sums[t][j] = fma(w[j], own, sums[t][j]);
    }
  }
  UNROLL_FOR (int t = 0; t < TOKENS; t++)
    UNROLL_FOR (int j = 0; j < LANES; j++) {
      A* to = y[t] + o + 16 * j;
      store(to, load(to) + sums[t][j]);
    }
}

template <int TOKENS, class A>
void expand_tile(const float* const* h, const A* up, A* const* y, int64_t N, int64_t O) {
  constexpr int kLanes = side(TOKENS);
  int64_t o = 0;
  for (; o + 16 * kLanes <= O; o += 16 * kLanes)
    add_products<TOKENS, kLanes>(h, up, y, o, N, O);
  for (; o + 16 <= O; o += 16) add_products<TOKENS, 1>(h, up, y, o, N, O);
  for (; o < O; o++)
    for (int t = 0; t < TOKENS; t++) {
      float total = 0;
      for (int64_t n = 0; n < N; n++)
        total = __builtin_fmaf(to_float(up[n * O + o]), h[t][n], total);
      from_float(y[t] + o, to_float(y[t][o]) + total);
    }
}

template <class A>
void expand_range(const Grouped& tokens, int64_t begin, int64_t end, const float* h,
                  int64_t h_stride, const A* up, A* y, int64_t y_stride, int64_t N, int64_t O) {
  const float* in[kTile];
  A* out[kTile];
  for (int64_t at = begin; at < end;) {
    const int64_t slot = tokens.slot[at];
    const int count = tokens.tile(at, end);
    for (int t = 0; t < count; t++) {
      in[t] = h + tokens.token[at + t] * h_stride;
      out[t] = y + tokens.token[at + t] * y_stride;
    }
    at += count;
    const A* own = up + slot * N * O;
    if (slot < 0) continue;
    if (count == 1) expand_tile<1>(in, own, out, N, O);
    if (count == 2) expand_tile<2>(in, own, out, N, O);
    if (count == 3) expand_tile<3>(in, own, out, N, O);
    if (count == 4) expand_tile<4>(in, own, out, N, O);
  }
}

void expand(int dtype, const float* h, int64_t h_stride, const void* up, const int64_t* slots_T,
            void* y, int64_t y_stride, int64_t T, int64_t N, int64_t O) {
  with_type(dtype, [&](auto element) {
    using A = decltype(element);
    by_slot(slots_T, T, N * O,
            [&](const Grouped& tokens, int64_t first, int64_t begin, int64_t end) {
              expand_range(tokens, begin, end, h + first * h_stride, h_stride, (const A*)up,
                           (A*)y + first * y_stride, y_stride, N, O);
            });
  });
}

}  // namespace

extern const Adapters INFERNO_EXPORT(adapters);
const Adapters INFERNO_EXPORT(adapters) = {shrink, expand};
