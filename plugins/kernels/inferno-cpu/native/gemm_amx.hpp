// Products of bfloat16 with AMX: tiles of tokens by tiles of panels.
//
// A tile of tokens is 16 tokens of 32 columns; one of a panel is 16 of its rows of pairs, as they
// are stored. TDPBF16PS sums the even and the odd columns of the 32 by themselves, and adds the sum
// of both. Bf16InTileOrder does the same with vectors: so a token's product is the same, bit for
// bit, whether few or many tokens are multiplied, but for subnormal numbers, which AMX treats as
// zero. Only matrices whose columns are divisible by 32 are multiplied like this.
#pragma once
#include "gemm_float.hpp"
#include "parallel.hpp"
#include "simd/amx.hpp"

namespace {

constexpr int kTileColumns = 32;       // of a step
constexpr int64_t kFewestTokens = 16;  // of a product with tiles: vectors multiply fewer as fast as
                                       // memory delivers the weights

struct Bf16InTileOrder {
  using X = float;
  static constexpr int kBytes = 1024, kPerStep = kTileColumns, kColumns = kTileColumns;
  template <int R, int T>
  INL void step(F32 (&sum)[R][T], const char* const (&w)[R], const X* x) {
    constexpr int kAtOnce = T < 4 ? T : 4;
    UNROLL_FOR (int r = 0; r < R; r++)
      UNROLL_FOR (int t = 0; t < T; t += kAtOnce) {
        F32 even[kAtOnce], odd[kAtOnce];
        UNROLL_FOR (int i = 0; i < kAtOnce; i++) even[i] = odd[i] = splat(0.0f);
        for (int k = 0; k < kTileColumns / 2; k++) {
          if (t == 0) __builtin_prefetch(w[r] + 64 * k + 2048, 0, 2);
          Pairs pairs = load_pairs((const bf16*)(w[r] + 64 * k));
          F32 first_v = first(pairs), second_v = second(pairs);
          const X* at = x + 2 * k * T + t;
          UNROLL_FOR (int i = 0; i < kAtOnce; i++)
            if (t + i < T) {
              even[i] = fma(first_v, splat(at[i]), even[i]);
              odd[i] = fma(second_v, splat(at[T + i]), odd[i]);
            }
        }
        UNROLL_FOR (int i = 0; i < kAtOnce; i++)
          if (t + i < T) sum[r][t + i] = sum[r][t + i] + (even[i] + odd[i]);
      }
  }
};

// Tokens are packed [steps][tokens of the tile][32 columns].
struct Bf16Tiles {
  using X = bf16;
  static constexpr int kBytes = 1024, kPerStep = kTileColumns, kColumns = kTileColumns;
  // Sums are tiles 0 to 3, tokens 4 and 5, panels 6 and 7.
  template <int T>
  static constexpr TileShapes shapes() {
    TileShapes s;
    for (int i = 0; i < 8; i++) {
      s.row_bytes[i] = 64;
      s.rows[i] = 16;
    }
    constexpr int kFirst = T < 16 ? T : 16, kSecond = T > 16 ? T - 16 : 16;
    s.rows[4] = kFirst;
    s.rows[5] = kSecond;
    for (int i = 0; i < 4; i++) s.rows[i] = T > 16 && i % 2 ? kSecond : kFirst;
    return s;
  }
};
template <int T>
constexpr TileShapes kShapes = Bf16Tiles::shapes<T>();

template <int SUM, int R, bool TWO>
INL void add_panels(const char* const* w) {
  constexpr int kPanel = 6 + R % 2;
  tile_load<kPanel>(w[R], 64);
  tile_dot_bf16<SUM, 4, kPanel>();
  if constexpr (TWO) tile_dot_bf16<SUM + 1, 5, kPanel>();
}

template <int TILE>
struct SumTile {
  static constexpr int kIndex = TILE;
};

// call(tile of sums, where its results begin), for each.
template <int R, int T, class Call>
INL void sums_of(const Call& call) {
  constexpr bool kTwo = T > 16;
  constexpr int kEach = kTwo ? 2 : 1;
  call(SumTile<0>(), 0);
  if constexpr (kTwo) call(SumTile<1>(), 16 * 16);
  if constexpr (R > 1) call(SumTile<kEach>(), T * 16);
  if constexpr (R > 1 && kTwo) call(SumTile<3>(), (T + 16) * 16);
  if constexpr (R > 2) call(SumTile<2>(), 2 * T * 16);
  if constexpr (R > 3) call(SumTile<3>(), 3 * T * 16);
}

// As tile() of gemm_float.hpp: R panels times T tokens. ONTO: added to what `out` has.
template <int R, int T, bool ONTO>
void amx_tile(const char* panels, int64_t panel_bytes, int present, const bf16* x, int64_t steps,
              const char* ahead, int64_t ahead_step, float* out) {
  constexpr bool kTwo = T > 16;
  constexpr int kEach = kTwo ? 2 : 1;  // tiles of tokens
  static_assert(R * kEach <= 4, "tiles of sums");
  const char* w[R];
  UNROLL_FOR (int r = 0; r < R; r++) w[r] = panels + (r < present ? r : present - 1) * panel_bytes;
  use_tiles(kShapes<T>);
  if constexpr (ONTO) {
    sums_of<R, T>([&](auto tile, int64_t at) { tile_load<decltype(tile)::kIndex>(out + at, 64); });
  } else {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  }
  for (int64_t s = 0; s < steps; s++) {
    UNROLL_FOR (int r = 0; r < R; r++)
      for (int64_t i = 0; i < ahead_step; i += 64)
        __builtin_prefetch(ahead + r * panel_bytes + i, 0, 2);
    tile_load<4>(x, 64);
    if constexpr (kTwo) tile_load<5>(x + 16 * kTileColumns, 64);
    add_panels<0, 0, kTwo>(w);
    if constexpr (R > 1) add_panels<kEach, 1, kTwo>(w);
    if constexpr (R > 2) add_panels<2 * kEach, 2, kTwo>(w);
    if constexpr (R > 3) add_panels<3 * kEach, 3, kTwo>(w);
    UNROLL_FOR (int r = 0; r < R; r++) w[r] += Bf16Tiles::kBytes;
    x += T * kTileColumns;
    ahead += ahead_step;
  }
  sums_of<R, T>([&](auto tile, int64_t at) { tile_store<decltype(tile)::kIndex>(out + at, 64); });
}

template <>
constexpr int tokens_of<Bf16Tiles> = 32;
template <int R, int T>
constexpr Tile<Bf16Tiles> tile_of<Bf16Tiles, R, T> = amx_tile<R, T, false>;

// Added to sums in memory.
struct Bf16TilesOnto : Bf16Tiles {};
template <>
constexpr int tokens_of<Bf16TilesOnto> = 32;
template <int R, int T>
constexpr Tile<Bf16TilesOnto> tile_of<Bf16TilesOnto, R, T> = amx_tile<R, T, true>;

// As DenseLinear::peak: four independent products of tiles, again and again.
double tile_peak() {
  constexpr int64_t kTimes = 20000;
  parallel_chunks(inferno_threads, 1, [&](int64_t begin, int64_t end) {
    TilesReleased released;
    use_tiles(kShapes<32>);
    tile_zero<4>(), tile_zero<5>(), tile_zero<6>(), tile_zero<7>();
    for (int64_t n = (end - begin) * kTimes; n; n--) {
      tile_dot_bf16<0, 4, 6>(), tile_dot_bf16<1, 5, 6>();
      tile_dot_bf16<2, 4, 7>(), tile_dot_bf16<3, 5, 7>();
    }
  });
  return double(4 * kTimes * inferno_threads) * (2 * 16 * 16 * kTileColumns);
}

// Pack T rows of x.
INL void pack_rows(const bf16* x, int64_t x_stride, int64_t T, int64_t K, bf16* to) {
  for (int64_t t = 0; t < T; t++)
    for (int64_t k = 0; k < K; k += kTileColumns)
      memcpy((void*)(to + k * T + t * kTileColumns), x + t * x_stride + k, 64);
}

}  // namespace
