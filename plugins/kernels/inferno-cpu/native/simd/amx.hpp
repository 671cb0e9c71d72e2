// Tiles of AMX: eight registers of up to 16 rows of 64 bytes, and their products. The instructions
// are written out, since their intrinsics take no template parameters in GCC.
#pragma once

#if !defined(__AMX_TILE__)
#include "../emulate_amx.hpp"
#else

// What LDTILECFG reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

INL void tile_configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
INL void tile_release() { asm volatile("tilerelease"); }
template <int TILE>
INL void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}
// Rows are `stride` bytes apart in memory.
template <int TILE>
INL void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
INL void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
}
// sum[m][n] += a[m][k] * b[k][n], where a has rows of k, and b has for each two k (bf16) or four k
// (int8) a row of n, each with its elements of these k.
template <int SUM, int A, int B>
INL void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(A), "i"(B));
}
template <int SUM, int A, int B>
INL void tile_dot_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(A), "i"(B));
}

template <int SUM, int A, int B>  // a is signed, b is not
INL void tile_dot_unsigned() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(A), "i"(B));
}

#endif

// Configuring takes longer than a product: the shapes stay until a thread needs others, or until it
// releases the tiles, which the system would otherwise save at each switch of threads.
static thread_local const TileShapes* current_shapes = nullptr;
INL void use_tiles(const TileShapes& shapes) {
  if (current_shapes == &shapes) return;
  tile_configure(shapes);
  current_shapes = &shapes;
}
struct TilesReleased {  // when it ends
  ~TilesReleased() {
    if (!current_shapes) return;
    tile_release();
    current_shapes = nullptr;
  }
};
