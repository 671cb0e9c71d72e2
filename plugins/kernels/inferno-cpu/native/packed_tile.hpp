// Panels times a few rows of x.
#pragma once
#include "packed_layout.hpp"

namespace {

// T quantized rows of x, as a tile reads them. For every 32 columns: the fours, [8][T][4] signed
// bytes (for tiles of AMX [T][32]); T scales; and for each 16 columns T sums: the correction of the
// integer sum for the offset or, in a layout with minimums, the scaled sum of x. With scales for 32
// columns, the first is for all 32. If more columns share a scale and a minimum of W, the first group
// has the sum of all; and if x has one scale for the whole row, first the correction, then the sum of
// x.
template <int T>
struct Activations {
  static constexpr int kScales = kColumns * T, kSums = kScales + 4 * T, kBytes = kSums + 8 * T;
};

// An element of a row of x that is not rounded, and counts as zero in its group. Trained models have
// channels that are tens of times as large as those beside them: a scale for both would leave these
// little. Where groups have their own scales, a tile ends in its T outliers.
struct Outlier {
  float value;      // 0: the row has none
  uint32_t column;  // of a first row without one: 1 if another row has one
};

// What to prefetch while weights from `from` on are multiplied: `rate` bytes from `to` on for every
// 64 KiB of them.
struct Ahead {
  const uint8_t *from, *to;
  int64_t rate, stride;  // `stride`: from one panel to the next
};
constexpr int kAhead = 3072;  // bytes: how far ahead weights are prefetched that are read once

template <class T>
INL T at_byte(const uint8_t* p) {
  T t;
  memcpy(&t, p, sizeof t);
  return t;
}

#if defined(INFERNO_NEON_MATRIX)
// total = products of codes and x over half a group, or all of it, by two tokens at once. Of an odd
// number, the last has a neighbour that is ignored: the bytes after its own.
template <class L, int R, int T>
INL void multiply_pairs(const uint8_t* w, int64_t stride, const uint8_t* x, int half,
                        I32 (&total)[R][T]) {
  constexpr int kHalfFours = kFours / L::kHalves;
  const uint8_t* sums = x + Activations<T>::kSums + 4 * T * half;
  PairSums pairs[R][(T + 1) / 2];
  UNROLL_FOR (int t = 0; t < T; t += 2) {
    PairSums start = start_pair(at_byte<int32_t>(sums + 4 * t),
                                at_byte<int32_t>(sums + 4 * (t + 1 < T ? t + 1 : t)));
    if (L::kOffset == 0) start = start_pair(0, 0);
    UNROLL_FOR (int r = 0; r < R; r++) pairs[r][t / 2] = start;
  }
  UNROLL_FOR (int i = 0; i < kHalfFours; i += 2) {
    int j = half * kHalfFours + i;
    UNROLL_FOR (int r = 0; r < R; r++) {
      B64 low = L::codes(w + r * stride, j), high = L::codes(w + r * stride, j + 1);
      UNROLL_FOR (int t = 0; t < T; t += 2) {
        auto eights = load_eights(x + (j * T + t) * 4, x + ((j + 1) * T + t) * 4);
        PairSums& sum = pairs[r][t / 2];
        sum.low = multiply_eights(sum.low, low, eights);
        sum.high = multiply_eights(sum.high, high, eights);
      }
    }
  }
  UNROLL_FOR (int r = 0; r < R; r++)
    UNROLL_FOR (int t = 0; t < T; t++)
      total[r][t] = t % 2 ? second(pairs[r][t / 2]) : first(pairs[r][t / 2]);
}
#endif

// f += the integer sums of half a group, or all of it, scaled; where groups share their scale, only
// by those of x.
template <class L, int R, int T>
INL void add_group(const typename L::Header (&header)[R], const uint8_t* w, int64_t stride,
                   const uint8_t* x, int half, const I32 (&total)[R][T], F32 (&f)[R][T]) {
  using A = Activations<T>;
  const uint8_t* sums = x + A::kSums + 4 * T * half;
  UNROLL_FOR (int r = 0; r < R; r++) {
    if constexpr (L::kShared > 1) {
      UNROLL_FOR (int t = 0; t < T; t++)
        f[r][t] = fma(to_f32(total[r][t]), splat(at_byte<float>(x + A::kScales + 4 * t)), f[r][t]);
    } else {
      F32 scale = L::scale(header[r], w + r * stride, half);
      UNROLL_FOR (int t = 0; t < T; t++)
        f[r][t] = fma(to_f32(total[r][t]) * splat(at_byte<float>(x + A::kScales + 4 * t)), scale,
                      f[r][t]);
      if constexpr (L::kHasMin) {
        F32 min = L::min(header[r], w + r * stride, half);
        UNROLL_FOR (int t = 0; t < T; t++)
          f[r][t] = f[r][t] - min * splat(at_byte<float>(sums + 4 * t));
      }
    }
  }
}

// Prefetch for the group of weights at `w`: of packed panels as many lines as it has, else one line
// of each panel.
template <class L, int R, int T>
INL void fetch_group(const Ahead& ahead, const uint8_t* w) {
  const uint8_t* at = ahead.to + ((w - ahead.from) * ahead.rate >> 16);
  if constexpr (L::kUnpacked) {
    UNROLL_FOR (int r = 0; r < R; r++) __builtin_prefetch(at + r * ahead.stride, 0, 2);
  } else {
    UNROLL_FOR (int i = 0; i < L::kGroupBytes; i += 64)
      __builtin_prefetch(at + i / 64 * (ahead.rate >> 10), 0, T <= 4 ? 3 : 2);
  }
}

// f += R panels, `stride` apart, times T rows of x; where groups share their scale, before it is
// applied.
template <class L, int R, int T>
INL void multiply_group(const typename L::Header (&header)[R], const uint8_t* w, int64_t stride,
                        const uint8_t* x, const Ahead& ahead, F32 (&f)[R][T]) {
  using D = Dot<L::kBits>;
  using A = Activations<T>;
  constexpr int kHalfFours = kFours / L::kHalves,
                kRun = kHalfFours < D::kRun ? kHalfFours : D::kRun;
  constexpr bool kCorrected = L::kOffset != 0 && !D::kSigned;
  constexpr bool kByPairs = kAtOnce == 8 && L::kUnpacked;
  fetch_group<L, R, T>(ahead, w);
  UNROLL_FOR (int half = 0; half < L::kHalves; half++) {
    const uint8_t* sums = x + A::kSums + 4 * T * half;
    I32 total[R][T];
#if defined(INFERNO_NEON_MATRIX)
    if constexpr (kByPairs) multiply_pairs<L, R, T>(w, stride, x, half, total);
#endif
    UNROLL_FOR (int run = kByPairs ? kHalfFours : 0; run < kHalfFours; run += kRun) {
      typename D::Acc a[R][T];
      UNROLL_FOR (int t = 0; t < T; t++) {
        UNROLL_FOR (int r = 0; r < R; r++)
          a[r][t] = D::start(kCorrected && run == 0 ? at_byte<int32_t>(sums + 4 * t) : 0);
      }
      if constexpr (D::kRun > 2) {
        UNROLL_FOR (int i = 0; i < kRun; i++) {
          int j = half * kHalfFours + run + i;
          B64 codes[R];
          UNROLL_FOR (int r = 0; r < R; r++) codes[r] = L::codes(w + r * stride, j);
          UNROLL_FOR (int t = 0; t < T; t++) {
            Four four = load_four(x + (j * T + t) * 4);
            UNROLL_FOR (int r = 0; r < R; r++) a[r][t] = D::add(a[r][t], codes[r], four);
          }
        }
      } else {  // with the fours as the inner loop, these short sums of 16 bits stay in registers
        B64 codes[R][kRun];
        UNROLL_FOR (int i = 0; i < kRun; i++)
          UNROLL_FOR (int r = 0; r < R; r++)
            codes[r][i] = L::codes(w + r * stride, half * kHalfFours + run + i);
        UNROLL_FOR (int t = 0; t < T; t++)
          UNROLL_FOR (int i = 0; i < kRun; i++) {
            Four four = load_four(x + ((half * kHalfFours + run + i) * T + t) * 4);
            UNROLL_FOR (int r = 0; r < R; r++) a[r][t] = D::add(a[r][t], codes[r][i], four);
          }
      }
      UNROLL_FOR (int t = 0; t < T; t++)
        UNROLL_FOR (int r = 0; r < R; r++) {
          if (run == 0)
            total[r][t] = D::total(a[r][t], kCorrected ? at_byte<int32_t>(sums + 4 * t) : 0);
          else
            total[r][t] = add(total[r][t], D::total(a[r][t], 0));
        }
    }
    add_group<L, R, T>(header, w, stride, x, half, total, f);
  }
}

// f += the integer sums of a span, scaled. `w` and `x` are those of its last group.
template <class L, int R, int T>
INL void scale_span(const typename L::Header (&header)[R], const uint8_t* w, int64_t stride,
                    const uint8_t* x, const uint8_t* sums, const I32 (&total)[R][T],
                    F32 (&f)[R][T]) {
  UNROLL_FOR (int r = 0; r < R; r++) {
    F32 scale = L::scale(header[r], w + r * stride, 0);
    UNROLL_FOR (int t = 0; t < T; t++) {
      F32 sum = to_f32(total[r][t]);
      if constexpr (L::kHasMin)  // codes - zero
        sum = sum - header[r].min * splat(at_byte<float>(sums + 4 * T + 4 * t));
      f[r][t] =
          fma(sum * splat(at_byte<float>(x + Activations<T>::kScales + 4 * t)), scale, f[r][t]);
    }
  }
}

// f += the products of groups that share a scale, with it, less their minimum times x. `w` is that
// of one of them, `x` of the first.
template <class L, int R, int T>
INL void scale_shared(const typename L::Header (&header)[R], const uint8_t* w, int64_t stride,
                      const uint8_t* x, const F32 (&products)[R][T], F32 (&f)[R][T]) {
  UNROLL_FOR (int r = 0; r < R; r++) {
    F32 scale = L::scale(header[r], w + r * stride, 0);
    UNROLL_FOR (int t = 0; t < T; t++) f[r][t] = fma(products[r][t], scale, f[r][t]);
    if constexpr (L::kHasMin) {
      F32 min = L::min(header[r], w + r * stride, 0);
      UNROLL_FOR (int t = 0; t < T; t++)
        f[r][t] = f[r][t] - min * splat(at_byte<float>(x + Activations<T>::kSums + 4 * t));
    }
  }
}

// As multiply_group, of all `span` groups of a row that has one scale, as has x: their integers are
// summed first.
template <class L, int R, int T>
INL void multiply_span(const typename L::Header (&header)[R], const uint8_t* w, int64_t stride,
                       const uint8_t* x, int64_t span, const Ahead& ahead, F32 (&f)[R][T]) {
  using D = Dot<L::kBits>;
  using A = Activations<T>;
  static_assert(L::kHalves == 1 && __is_same(typename D::Acc, I32), "one sum");
  constexpr bool kByPairs = kAtOnce == 8 && L::kUnpacked;
  const uint8_t* sums = x + A::kSums;
  I32 total[R][T];
  UNROLL_FOR (int t = 0; t < T; t++)
    UNROLL_FOR (int r = 0; r < R; r++)
      total[r][t] = D::start(kByPairs ? 0 : at_byte<int32_t>(sums + 4 * t));
  for (int64_t i = 0; i < span; i++) {
    fetch_group<L, R, T>(ahead, w);
#if defined(INFERNO_NEON_MATRIX)
    if constexpr (kByPairs) {
      I32 part[R][T];
      multiply_pairs<L, R, T>(w, stride, x, 0, part);
      UNROLL_FOR (int r = 0; r < R; r++)
        UNROLL_FOR (int t = 0; t < T; t++) total[r][t] = add(total[r][t], part[r][t]);
    }
#endif
    UNROLL_FOR (int j = kByPairs ? kFours : 0; j < kFours; j++) {
      B64 codes[R];
      UNROLL_FOR (int r = 0; r < R; r++) codes[r] = L::codes(w + r * stride, j);
      UNROLL_FOR (int t = 0; t < T; t++) {
        Four four = load_four(x + (j * T + t) * 4);
        UNROLL_FOR (int r = 0; r < R; r++) total[r][t] = D::add(total[r][t], codes[r], four);
      }
    }
    if (i + 1 < span) w += L::kGroupBytes, x += A::kBytes;
  }
  scale_span<L, R, T>(header, w, stride, x, sums, total, f);
}

// A column of a panel: 16 weights.
template <class L>
INL F32 column_of(const uint8_t* panel, uint32_t column) {
  using D = Dot<L::kBits>;
  constexpr int kCorrection = D::kSigned ? 0 : -L::kOffset;
  const uint32_t g = column / kColumns, place = column % kColumns;
  const uint8_t* super = panel + L::kHead + g / L::kGroups * size_t(L::kSuperBytes);
  const uint8_t* group = super + L::kHeader + g % L::kGroups * L::kGroupBytes;
  const typename L::Header header = L::header(super);
  const int half = L::kHalves == 2 ? int(place / 16) : 0;
  const uint32_t one = 1u << 8 * (place % 4);
  auto sum = D::add(D::start(kCorrection), L::codes(group, int(place / 4)),
                    load_four((const uint8_t*)&one));
  F32 w = to_f32(D::total(sum, kCorrection)) * L::scale(header, group, half);
  if constexpr (L::kHasMin) w = w - L::min(header, group, half);
  return w;
}

// y[at_once][T][16] += the products of one or two panels, `bytes` apart, and the outliers of T
// rows. Those of neighbours are mostly in the same column. (Before the other columns, this one would
// be waited for: 1.4 times the time of a head. After them it is in the cache.)
template <class L>
void add_outliers(const uint8_t* panel, int64_t bytes, int at_once, const uint8_t* outliers, int T,
                  float* y) {
  const uint8_t* second = panel + (at_once - 1) * bytes;
  uint32_t column = ~0u;
  F32 w[2] = {splat(0.0f), splat(0.0f)};
  for (int t = 0; t < T; t++, y += kRows) {
    Outlier outlier = at_byte<Outlier>(outliers + sizeof(Outlier) * size_t(t));
    if (outlier.value == 0.0f) continue;
    if (outlier.column != column) {
      column = outlier.column;
      w[0] = column_of<L>(panel, column);
      if (at_once == 2) w[1] = column_of<L>(second, column);
    }
    store(y, fma(w[0], splat(outlier.value), load(y)));
    if (at_once == 2) store(y + T * kRows, fma(w[1], splat(outlier.value), load(y + T * kRows)));
  }
}

// y[R][T][16]
template <class L, int R, int T>
void multiply(const uint8_t* w, int64_t stride, const uint8_t* x, int64_t groups,
              const Ahead& ahead, float* y) {
  F32 f[R][T];
  UNROLL_FOR (int r = 0; r < R; r++)
    UNROLL_FOR (int t = 0; t < T; t++) f[r][t] = splat(0.0f);
  if constexpr (L::kSpan == 0) {
    typename L::Header header[R];
    UNROLL_FOR (int r = 0; r < R; r++) header[r] = L::header(w + r * stride);
    multiply_span<L, R, T>(header, w + L::kHead, stride, x, groups, ahead, f);
    groups = 0;
  }
  for (int64_t g = 0; g < groups; g += L::kGroups, w += L::kSuperBytes) {
    typename L::Header header[R];
    UNROLL_FOR (int r = 0; r < R; r++) header[r] = L::header(w + r * stride);
    if constexpr (L::kShared > 1) {
      F32 products[R][T];
      UNROLL_FOR (int r = 0; r < R; r++)
        UNROLL_FOR (int t = 0; t < T; t++) products[r][t] = splat(0.0f);
      for (int i = 0; i < L::kGroups; i++)
        multiply_group<L, R, T>(header, w + L::kHeader + i * L::kGroupBytes, stride,
                                x + i * Activations<T>::kBytes, ahead, products);
      scale_shared<L, R, T>(header, w + L::kHeader, stride, x, products, f);
      x += L::kGroups * Activations<T>::kBytes;
    } else if constexpr (L::kSpan == 1) {
      const uint8_t* group = w + L::kHeader;
      for (int i = 0; i < L::kGroups; i++, group += L::kGroupBytes, x += Activations<T>::kBytes)
        multiply_group<L, R, T>(header, group, stride, x, ahead, f);
    }
  }
  UNROLL_FOR (int r = 0; r < R; r++)
    UNROLL_FOR (int t = 0; t < T; t++) store(y + (r * T + t) * kRows, f[r][t]);
}

}  // namespace
