// Rows of queries against up to four panels: scores, softmax, weighted values. Rows are queries of
// one key/value head: tokens x the query heads that share it.
#pragma once
#include "simd_attention.hpp"

namespace {

constexpr int kPanels = 4;           // processed at once
constexpr int kKeys = 16 * kPanels;  // in a row of scores
constexpr int kMaxHeadDim = 256;
// Stride of rows of queries and outputs: not a power of two, to avoid cache conflicts.
constexpr int kStride = kMaxHeadDim + 16;

#if defined(INFERNO_AVX512)
constexpr int kGroup = 12;   // rows computed at once, limited by registers
constexpr int kRows = 72;    // of a tile
constexpr int kDirect = 12;  // up to this many rows, elements are converted as they are read
constexpr int padded(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : rows <= 8 ? 8 : 12; }
constexpr int panels_at_once(int rows) { return rows <= 4 ? 4 : 2; }
constexpr int columns_at_once(int rows) { return rows <= 4 ? 4 : 2; }
#elif defined(INFERNO_SVE256)
constexpr int kGroup = 12;
constexpr int kRows = 72;
constexpr int kDirect = 12;
constexpr int padded(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : rows <= 8 ? 8 : 12; }
constexpr int panels_at_once(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }
constexpr int columns_at_once(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }
#else
constexpr int kGroup = 6;
constexpr int kRows = 60;
constexpr int kDirect = 4;
constexpr int padded(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : 6; }
constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
constexpr int columns_at_once(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#endif
// Maximum rows of a tile: one token of 128 heads that share a key head, in whole groups.
constexpr int kTileRows = 132;

constexpr float kNothing = -1e30f;  // score of a masked key
constexpr float kLog2e = 1.44269504f;

template <int Bytes>
INL void fetch(const void* p) {
  UNROLL_FOR (int i = 0; i < Bytes; i += 64) __builtin_prefetch((const char*)p + i, 0, 2);
}

// What queries and weights are computed in: X is float, bf16 or int16_t.
template <class X>
INL Pairs pair(const X* p) {
  uint32_t u;
  memcpy(&u, p, 4);
  return splat_pair(u);
}
template <class X>
struct Sums {
  using type = F32;
};
template <>
struct Sums<int16_t> {
  using type = I32;
};
INL void clear(F32& x) { x = splat(0.0f); }
INL void clear(I32& x) { x = splat(int32_t(0)); }
INL F32 in_floats(F32 x) { return x; }
INL F32 in_floats(I32 x) { return to_f32(x); }

// scores[r][16 p + i] = q[r] . key i of panel p. `ahead`: panels to prefetch meanwhile.
template <int Rows, int Panels, bool Ahead, class X, class E>
INL void score(const X* q, int C, const E* const* keys, const E* const* ahead, float* scores) {
  typename Sums<X>::type sums[Rows][Panels];
  UNROLL_FOR (int r = 0; r < Rows; r++)
    UNROLL_FOR (int p = 0; p < Panels; p++) clear(sums[r][p]);
  for (int c = 0; c < C; c += 2) {
    if constexpr (Ahead)
      UNROLL_FOR (int p = 0; p < Panels; p++) fetch<int(32 * sizeof(E))>(ahead[p] + 16 * c);
    if constexpr (sizeof(X) == 2) {
      Pairs two[Panels];
      UNROLL_FOR (int p = 0; p < Panels; p++) two[p] = load_pairs(keys[p] + 16 * c);
      UNROLL_FOR (int r = 0; r < Rows; r++) {
        Pairs x = pair(q + r * kStride + c);
        UNROLL_FOR (int p = 0; p < Panels; p++) sums[r][p] = dot2(sums[r][p], two[p], x);
      }
    } else {
      UNROLL_FOR (int half = 0; half < 2; half++) {
        F32 one[Panels];
        UNROLL_FOR (int p = 0; p < Panels; p++) one[p] = row(keys[p] + 16 * c, half);
        UNROLL_FOR (int r = 0; r < Rows; r++) {
          F32 x = splat(q[r * kStride + c + half]);
          UNROLL_FOR (int p = 0; p < Panels; p++) sums[r][p] = fma(x, one[p], sums[r][p]);
        }
      }
    }
  }
  UNROLL_FOR (int r = 0; r < Rows; r++)
    UNROLL_FOR (int p = 0; p < Panels; p++)
      store(scores + r * kKeys + 16 * p, in_floats(sums[r][p]));
}

// out[r] = fade[r] * out[r] + units[r] * the sum over the panels' tokens of weights[r][token] *
// value, for `Columns` times 16 channels. Units are 1 if not Scaled.
template <int Rows, int Columns, bool Ahead, bool Scaled, class X, class E>
INL void weigh(const X* weights, const E* const* values, const E* const* ahead, int panels,
               int64_t at, const float* fade, const float* units, float* out) {
  typename Sums<X>::type sums[Rows][Columns];
  UNROLL_FOR (int r = 0; r < Rows; r++)
    UNROLL_FOR (int b = 0; b < Columns; b++) {
      if constexpr (Scaled) {
        clear(sums[r][b]);
      } else {
        sums[r][b] = load(out + r * kStride + 16 * b) * splat(fade[r]);
      }
    }
  for (int p = 0; p < panels; p++) {
    const E* v = values[p] + at;
    for (int t = 0; t < 16; t += 2) {
      if constexpr (Ahead)
        UNROLL_FOR (int b = 0; b < Columns; b++)
          fetch<int(32 * sizeof(E))>(ahead[p] + at + 256 * b + 16 * t);
      if constexpr (sizeof(X) == 2) {
        Pairs two[Columns];
        UNROLL_FOR (int b = 0; b < Columns; b++) two[b] = load_pairs(v + 256 * b + 16 * t);
        UNROLL_FOR (int r = 0; r < Rows; r++) {
          Pairs w = pair(weights + r * kKeys + 16 * p + t);
          UNROLL_FOR (int b = 0; b < Columns; b++) sums[r][b] = dot2(sums[r][b], two[b], w);
        }
      } else {
        UNROLL_FOR (int half = 0; half < 2; half++) {
          F32 one[Columns];
          UNROLL_FOR (int b = 0; b < Columns; b++) one[b] = row(v + 256 * b + 16 * t, half);
          UNROLL_FOR (int r = 0; r < Rows; r++) {
            F32 w = splat(weights[r * kKeys + 16 * p + t + half]);
            UNROLL_FOR (int b = 0; b < Columns; b++) sums[r][b] = fma(w, one[b], sums[r][b]);
          }
        }
      }
    }
  }
  UNROLL_FOR (int r = 0; r < Rows; r++)
    UNROLL_FOR (int b = 0; b < Columns; b++) {
      float* to = out + r * kStride + 16 * b;
      F32 total = in_floats(sums[r][b]);
      if constexpr (Scaled) total = fma(total, splat(units[r]), load(to) * splat(fade[r]));
      store(to, total);
    }
}

template <int Rows, bool Ahead, class X, class E>
__attribute__((noinline)) void score_panels(const X* q, int C, const E* const* keys,
                                            const E* const* ahead, int first, int stop,
                                            float* scores) {
  constexpr int at_once = panels_at_once(Rows);
  int p = first;
  for (; p + at_once <= stop; p += at_once)
    score<Rows, at_once, Ahead>(q, C, keys + p, ahead + p, scores + 16 * p);
  if constexpr (at_once > 1)
    for (; p < stop; p++) score<Rows, 1, Ahead>(q, C, keys + p, ahead + p, scores + 16 * p);
}

template <int Rows, bool Ahead, bool Scaled, class X, class E>
__attribute__((noinline)) void weigh_panels(const X* weights, const E* const* values,
                                            const E* const* ahead, int panels, int first, int stop,
                                            const float* fade, const float* units, float* out) {
  constexpr int at_once = columns_at_once(Rows);
  int b = first;
  for (; b + at_once <= stop; b += at_once)
    weigh<Rows, at_once, Ahead, Scaled>(weights, values, ahead, panels, int64_t(256) * b, fade,
                                        units, out + 16 * b);
  if constexpr (at_once > 1)
    for (; b < stop; b++)
      weigh<Rows, 1, Ahead, Scaled>(weights, values, ahead, panels, int64_t(256) * b, fade, units,
                                    out + 16 * b);
}

// Call body(Count<N>) with `rows` rounded up to a number of rows that has a kernel.
template <int N>
struct Count {
  static constexpr int value = N;
};
template <class Body>
INL void with_rows(int rows, const Body& body) {
  switch (padded(rows)) {
    case 1: return body(Count<1>{});
    case 2: return body(Count<2>{});
    case 4: return body(Count<4>{});
#if defined(INFERNO_AVX512) || defined(INFERNO_SVE256)
    case 8: return body(Count<8>{});
    default: return body(Count<12>{});
#else
    default: return body(Count<6>{});
#endif
  }
}

// Convert a panel to the type of the computation. `ahead`: the panel to prefetch meanwhile.
template <class X, class E>
void expand(const E* panel, const E* ahead, int64_t count, X* to) {
  for (int64_t i = 0; i < count; i += 32) {
    fetch<int(32 * sizeof(E))>(ahead + i);
    if constexpr (sizeof(X) == 2) {
      store_pairs(to + i, load_pairs(panel + i));
    } else {
      store(to + i, row(panel + i, 0)), store(to + i + 16, row(panel + i, 1));
    }
  }
}

}  // namespace
