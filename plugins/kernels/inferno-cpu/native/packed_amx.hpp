// Products of unpacked panels with AMX: a tile of up to 16 rows of x by one panel, 32 columns at a
// time (16 where each 16 have their own scale), as many groups at once as share a scale of x. The
// integer sums go through memory to vectors, which scale and add them as multiply_group and
// multiply_span do: results are the same, bit for bit.
//
// Rows of x are signed bytes, [T][32] for each 32 columns. Codes of layouts with an offset are
// signed too: TDPBSSD. The others are not: TDPBSUD.
#pragma once
#include "packed_product.hpp"

namespace {

// Sums are tiles 0 and 1, in turns; x is tile 2, the panel is tile 3.
template <int HALVES, int T>
constexpr TileShapes packed_shapes() {
  TileShapes s;
  s.rows[0] = s.rows[1] = s.rows[2] = T;
  s.rows[3] = kFours / HALVES;
  s.row_bytes[0] = s.row_bytes[1] = s.row_bytes[3] = 64;
  s.row_bytes[2] = kColumns / HALVES;
  return s;
}
template <int HALVES, int T>
constexpr TileShapes kPackedShapes = packed_shapes<HALVES, T>();

// to[T][16] = the integer sums of half a group, or of `span` groups.
template <class U, int T, int SUM>
INL void sum_tile(const uint8_t* w, const uint8_t* x, int half, int64_t span, int32_t* to) {
  tile_zero<SUM>();
  for (int64_t i = 0; i < span; i++, w += U::kGroupBytes, x += Activations<T>::kBytes) {
    tile_load<2>(x + half * (kColumns / U::kHalves), kColumns);
    tile_load<3>(w + U::kCodesAt + half * (kFours / U::kHalves) * 64, 64);
    if constexpr (U::kOffset != 0)
      tile_dot_int8<SUM, 2, 3>();
    else
      tile_dot_unsigned<SUM, 2, 3>();
  }
  tile_store<SUM>(to, 64);
}

// y[T][16] = the product.
template <class U, int T>
void multiply_tiles(const uint8_t* w, int64_t, const uint8_t* x, int64_t groups, const Ahead& ahead,
                    float* y) {
  using A = Activations<T>;
  constexpr int kSumsOnce = U::kSpan == 1 ? U::kHalves : 1;
  int64_t span = U::kSpan ? U::kSpan : groups;
  const typename U::Header header[1] = {U::header(w)};
  w += U::kHead;
  alignas(64) int32_t sums[4][kSumsOnce][T * kRows];  // of this span and of the next two
  auto start = [&](int64_t g) {
    const uint8_t *at_w = w + g * U::kGroupBytes, *at_x = x + g * A::kBytes;
    auto& to = sums[g / span % 4];
    sum_tile<U, T, 0>(at_w, at_x, 0, span, to[0]);
    if constexpr (U::kHalves == 2) sum_tile<U, T, 1>(at_w, at_x, 1, span, to[1]);
  };
  F32 f[1][T], products[1][T];
  UNROLL_FOR (int t = 0; t < T; t++) f[0][t] = products[0][t] = splat(0.0f);
  use_tiles(kPackedShapes<U::kHalves, T>);
  start(0);
  if (span < groups) start(span);
  for (int64_t g = 0; g < groups; g += span) {
    if (g + 2 * span < groups) start(g + 2 * span);  // beside the vectors of this one
    const uint8_t *own_x = x + g * A::kBytes, *own_w = w + g * U::kGroupBytes;
    fetch_group<U, 1, T>(ahead, own_w);
    UNROLL_FOR (int half = 0; half < U::kHalves; half++) {
      const int32_t* sum = sums[g / span % 4][half];
      I32 total[1][T];
      UNROLL_FOR (int t = 0; t < T; t++) total[0][t] = load(sum + t * kRows);
      if constexpr (U::kSpan != 1) {
        scale_span<U, 1, T>(header, own_w, 0, own_x, own_x + A::kSums, total, f);
      } else if constexpr (U::kShared > 1) {
        add_group<U, 1, T>(header, own_w, 0, own_x, half, total, products);
        if (g % U::kShared != U::kShared - 1) continue;
        constexpr int kBefore = U::kShared - 1;
        scale_shared<U, 1, T>(header, own_w, 0, own_x - kBefore * A::kBytes, products, f);
        UNROLL_FOR (int t = 0; t < T; t++) products[0][t] = splat(0.0f);
      } else {
        add_group<U, 1, T>(header, own_w, 0, own_x, half, total, f);
      }
    }
  }
  UNROLL_FOR (int t = 0; t < T; t++) store(y + t * kRows, f[0][t]);
}

// As multiply_tiles, of two panels: y[2][T][16].
template <class U, int T>
void multiply_two(const uint8_t* w, int64_t stride, const uint8_t* x, int64_t groups,
                  const Ahead& ahead, float* y) {
  multiply_tiles<U, T>(w, stride, x, groups, ahead, y);
  const Ahead second = {ahead.from + stride, ahead.to + ahead.stride, ahead.rate, 0};
  multiply_tiles<U, T>(w + stride, stride, x, groups, second, y + T * kRows);
}

// The functions for T rows, 1 .. 16: of two panels, and of one.
template <class U, int T = 16>
constexpr void tile_kernels(Kernel& k) {
  k.wide[T - 1] = multiply_two<U, T>;
  k.wide_last[T - 1] = multiply_tiles<U, T>;
  if constexpr (T > 1) tile_kernels<U, T - 1>(k);
}

// As DenseLinear::peak: four independent products of tiles, again and again.
double packed_tile_peak() {
  static constexpr TileShapes kShapes = [] {
    TileShapes s;
    for (int i = 0; i < 8; i++) s.rows[i] = 16, s.row_bytes[i] = 64;
    return s;
  }();
  constexpr int64_t kTimes = 20000;
  parallel_chunks(inferno_threads, 1, [&](int64_t begin, int64_t end) {
    TilesReleased released;
    use_tiles(kShapes);
    tile_zero<4>(), tile_zero<5>(), tile_zero<6>(), tile_zero<7>();
    for (int64_t n = (end - begin) * kTimes; n; n--) {
      tile_dot_int8<0, 4, 6>(), tile_dot_int8<1, 5, 6>();
      tile_dot_int8<2, 4, 7>(), tile_dot_int8<3, 5, 7>();
    }
  });
  return double(4 * kTimes * inferno_threads) * (2 * 16 * 16 * 64);
}

}  // namespace
