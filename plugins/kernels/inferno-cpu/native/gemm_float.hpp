// Tiles of a matrix product in float32 sums: R panels (of sixteen rows of the weights) by T tokens,
// over all of K. 256 steps are summed at a time, and these sums in turn: the error of one chain grows
// with the root of its length.
//
// A panel is a sequence of steps, contiguous in memory: bf16 [K/2][16][2], f16 and f32 [K][16]. So
// one activation, broadcast to every lane, serves sixteen outputs, nothing is summed across lanes,
// and memory is read in order. Activations of a tile are packed [steps][elements per step][T].
#pragma once
#include "simd.hpp"

namespace {

// Maximum tokens of a tile, and its panels: as many sums as fit in registers.
#if defined(INFERNO_AVX512)
constexpr int kTokens = 12, kPanels = 2;
#elif defined(INFERNO_SVE256)
constexpr int kTokens = 12, kPanels = 1;
#elif defined(INFERNO_AVX2) || defined(INFERNO_NEON)
constexpr int kTokens = 6, kPanels = 1;
#else
constexpr int kTokens = 2, kPanels = 1;
#endif

// Panels of a tile of only T tokens: enough independent sums to hide the latency of one.
constexpr int panels_for(int T) {
#if defined(INFERNO_AVX512)
  return T <= 6 ? 4 : kPanels;
#elif defined(INFERNO_SVE256)
  return T <= 3 ? 4 : T <= 6 ? 2 : kPanels;
#else
  return T == 1 ? 4 : T <= 3 ? 2 : kPanels;
#endif
}

// One step of a product, for each type of weights.
struct Bf16Steps {  // activations of any type, as float32: products are exact
  using X = float;
  static constexpr int kBytes = 64, kPerStep = 2, kColumns = 2;
  template <int R, int T>
  INL void step(F32 (&sum)[R][T], const char* const (&w)[R], const X* x) {
    F32 v[R];  // the second of each pair first, as dot2 does
    UNROLL_FOR (int r = 0; r < R; r++) v[r] = second(load_pairs((const bf16*)w[r]));
    UNROLL_FOR (int t = 0; t < T; t++) {
      F32 b = splat(x[T + t]);
      UNROLL_FOR (int r = 0; r < R; r++) {
        sum[r][t] = fma(v[r], b, sum[r][t]);
        compute_now(sum[r][t]);
      }
    }
    UNROLL_FOR (int r = 0; r < R; r++) v[r] = first(load_pairs((const bf16*)w[r]));
    UNROLL_FOR (int t = 0; t < T; t++) {
      F32 b = splat(x[t]);
      UNROLL_FOR (int r = 0; r < R; r++) sum[r][t] = fma(v[r], b, sum[r][t]);
    }
  }
};

struct Bf16DotSteps {  // bf16 activations in pairs: faster if dot2 is one instruction
  using X = uint32_t;
  static constexpr int kBytes = 64, kPerStep = 1, kColumns = 2;
  template <int R, int T>
  INL void step(F32 (&sum)[R][T], const char* const (&w)[R], const X* x) {
    Pairs v[R];
    UNROLL_FOR (int r = 0; r < R; r++) v[r] = load_pairs((const bf16*)w[r]);
    UNROLL_FOR (int t = 0; t < T; t++) {
      Pairs b = splat_pair(x[t]);
      UNROLL_FOR (int r = 0; r < R; r++) sum[r][t] = dot2(sum[r][t], v[r], b);
    }
  }
};

template <class E>
struct ColumnSteps {  // f16, f32
  using X = float;
  static constexpr int kBytes = 16 * sizeof(E), kPerStep = 1, kColumns = 1;
  template <int R, int T>
  INL void step(F32 (&sum)[R][T], const char* const (&w)[R], const X* x) {
    F32 v[R];
    UNROLL_FOR (int r = 0; r < R; r++) v[r] = load((const E*)w[r]);
    UNROLL_FOR (int t = 0; t < T; t++) {
      F32 b = splat(x[t]);
      UNROLL_FOR (int r = 0; r < R; r++) sum[r][t] = fma(v[r], b, sum[r][t]);
    }
  }
};

// Steps that are summed in one chain. A step of many columns is already a sum.
template <class S>
constexpr int64_t kChain = S::kColumns <= 2 ? 256 : int64_t(1) << 62;

// Store the sum of the chain that begins at step `begin`, added to those of the chains before it.
INL void add_to(float* out, F32 sum, int64_t begin) { store(out, begin ? load(out) + sum : sum); }

#if defined(INFERNO_NEON_MATRIX)
// tile() of bf16 by the matrix instruction: four columns of two tokens at a time, T even. Bit for
// bit the same, since the instruction is defined as two of dot2.
template <int R, int T>
void tile_by_pairs(const char* panels, int64_t panel_bytes, int present, const uint32_t* x,
                   int64_t steps, const char* ahead, int64_t ahead_step, float* out) {
  alignas(64) static const uint8_t zeros[64] = {};
  const uint8_t* w[R];
  UNROLL_FOR (int r = 0; r < R; r++)
    w[r] = (const uint8_t*)panels + (r < present ? r : present - 1) * panel_bytes;
  for (int64_t s = 0; s < steps;) {
    int64_t begin = s, end = steps - s < kChain<Bf16DotSteps> ? steps : s + kChain<Bf16DotSteps>;
    FloatPairs sum[R][T / 2];
    UNROLL_FOR (int r = 0; r < R; r++)
      UNROLL_FOR (int t = 0; t < T / 2; t++) sum[r][t] = {splat(0.0f), splat(0.0f)};
    for (; s < end; s += 2) {
      bool both = s + 1 < end;
      decltype(load_eights(zeros, zeros)) four[T / 2];
      UNROLL_FOR (int t = 0; t < T / 2; t++)
        four[t] = load_eights((const uint8_t*)(x + 2 * t),
                              both ? (const uint8_t*)(x + T + 2 * t) : zeros);
      UNROLL_FOR (int r = 0; r < R; r++) {
        __builtin_prefetch(ahead + r * panel_bytes, 0, 2);
        __builtin_prefetch(ahead + ahead_step + r * panel_bytes, 0, 2);
        const uint8_t* next = both ? w[r] + 64 : zeros;
        B64 low = interleave(w[r], next);
        UNROLL_FOR (int t = 0; t < T / 2; t++)
          sum[r][t].low = multiply_eights(sum[r][t].low, low, four[t]);
        B64 high = interleave(w[r] + 32, next + 32);
        UNROLL_FOR (int t = 0; t < T / 2; t++)
          sum[r][t].high = multiply_eights(sum[r][t].high, high, four[t]);
        w[r] += 128;
      }
      x += 2 * T;
      ahead += 2 * ahead_step;
    }
    UNROLL_FOR (int r = 0; r < R; r++)
      UNROLL_FOR (int t = 0; t < T / 2; t++) {
        add_to(out + (r * T + 2 * t) * 16, first(sum[r][t]), begin);
        add_to(out + (r * T + 2 * t + 1) * 16, second(sum[r][t]), begin);
      }
  }
}
#endif

// out[R][T][16] = R panels, `panel_bytes` apart, times T tokens. Only the first `present` panels
// exist; results of the others are meaningless. Each step prefetches the next address of ahead,
// ahead + ahead_step, ... for each panel.
template <class S, int R, int T>
void tile(const char* panels, int64_t panel_bytes, int present, const typename S::X* x,
          int64_t steps, const char* ahead, int64_t ahead_step, float* out) {
  const char* w[R];
  UNROLL_FOR (int r = 0; r < R; r++) w[r] = panels + (r < present ? r : present - 1) * panel_bytes;
  for (int64_t s = 0; s < steps;) {
    int64_t begin = s, end = steps - s < kChain<S> ? steps : s + kChain<S>;
    F32 sum[R][T];
    UNROLL_FOR (int t = 0; t < T; t++)
      UNROLL_FOR (int r = 0; r < R; r++) sum[r][t] = splat(0.0f);
    for (; s < end; s++) {
      UNROLL_FOR (int r = 0; r < R; r++) __builtin_prefetch(ahead + r * panel_bytes, 0, 2);
      S::template step<R, T>(sum, w, x);
      UNROLL_FOR (int r = 0; r < R; r++) w[r] += S::kBytes;
      x += T * S::kPerStep;
      ahead += ahead_step;
    }
    UNROLL_FOR (int r = 0; r < R; r++)
      UNROLL_FOR (int t = 0; t < T; t++) add_to(out + (r * T + t) * 16, sum[r][t], begin);
  }
}

template <class S>
using Tile = void (*)(const char*, int64_t, int, const typename S::X*, int64_t, const char*,
                      int64_t, float*);

// The most tokens of a tile, and its function.
template <class S>
constexpr int tokens_of = kTokens;
template <class S, int R, int T>
constexpr Tile<S> tile_of = tile<S, R, T>;

// The tile function for T tokens; `alone`: there are no other tokens.
template <class S, int T = tokens_of<S>>
INL Tile<S> tile_for(int tokens, bool alone) {
  if constexpr (T == 0) {
    return nullptr;
  } else {
#if defined(INFERNO_NEON_MATRIX)
    if constexpr (__is_same(S, Bf16DotSteps) && T % 2 == 0)
      if (tokens == T && !alone) return tile_by_pairs<kPanels, T>;
#endif
    if (tokens == T) return alone ? tile_of<S, panels_for(T), T> : tile_of<S, kPanels, T>;
    return tile_for<S, T - 1>(tokens, alone);
  }
}

}  // namespace
