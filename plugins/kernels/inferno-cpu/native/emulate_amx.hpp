// Tiles of AMX as plain code, as Intel's manual defines them, to test the kernels on a machine
// without them (CMake: INFERNO_EMULATE).
#pragma once

struct TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct EmulatedTiles {
  TileShapes shapes;
  bool configured = false;
  char data[8][16][64] = {};
};
static thread_local EmulatedTiles emulated_tiles;

INL EmulatedTiles& emulated_configured() {
  if (!emulated_tiles.configured) __builtin_trap();
  return emulated_tiles;
}
static void tile_configure(const TileShapes& shapes) {
  for (int i = 0; i < 8; i++)
    if (shapes.palette != 1 || shapes.row_bytes[i] > 64 || shapes.rows[i] > 16 ||
        !shapes.row_bytes[i] != !shapes.rows[i])
      __builtin_trap();
  emulated_tiles = EmulatedTiles{shapes, true};
}
static void tile_release() { emulated_tiles = EmulatedTiles{}; }
template <int TILE>
static void tile_zero() {
  memset(emulated_configured().data[TILE], 0, sizeof emulated_tiles.data[TILE]);
}
template <int TILE>
static void tile_load(const void* from, int64_t stride) {
  EmulatedTiles& tiles = emulated_configured();
  tile_zero<TILE>();
  for (int r = 0; r < tiles.shapes.rows[TILE]; r++)
    memcpy(tiles.data[TILE][r], (const char*)from + r * stride, tiles.shapes.row_bytes[TILE]);
}
template <int TILE>
static void tile_store(void* to, int64_t stride) {
  EmulatedTiles& tiles = emulated_configured();
  for (int r = 0; r < tiles.shapes.rows[TILE]; r++)
    memcpy((char*)to + r * stride, tiles.data[TILE][r], tiles.shapes.row_bytes[TILE]);
}
// The shapes of a product must fit each other.
template <int SUM, int A, int B>
static void emulated_check() {
  const TileShapes& shapes = emulated_configured().shapes;
  if (shapes.rows[SUM] != shapes.rows[A] || shapes.row_bytes[SUM] != shapes.row_bytes[B] ||
      shapes.row_bytes[A] != 4 * shapes.rows[B])
    __builtin_trap();
}
INL float emulated_tile_flush(float x) {  // subnormal numbers are zero
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}
// The sums of the even and of the odd k are separate, and are added to the tile at the end.
template <int SUM, int A, int B>
static void tile_dot_bf16() {
  emulated_check<SUM, A, B>();
  EmulatedTiles& tiles = emulated_tiles;
  auto value = [&](int tile, int row, int i) {
    bf16 x;
    memcpy(&x, tiles.data[tile][row] + 2 * i, 2);
    return emulated_tile_flush(to_float(x));
  };
  for (int m = 0; m < tiles.shapes.rows[SUM]; m++)
    for (int n = 0; n < tiles.shapes.row_bytes[SUM] / 4; n++) {
      float part[2] = {0.0f, 0.0f}, sum;
      for (int k = 0; k < tiles.shapes.rows[B]; k++)
        for (int odd = 0; odd < 2; odd++)
          part[odd] = emulated_tile_flush(
              __builtin_fmaf(value(A, m, 2 * k + odd), value(B, k, 2 * n + odd), part[odd]));
      memcpy(&sum, tiles.data[SUM][m] + 4 * n, 4);
      sum = emulated_tile_flush(emulated_tile_flush(sum) + emulated_tile_flush(part[0] + part[1]));
      memcpy(tiles.data[SUM][m] + 4 * n, &sum, 4);
    }
}
// B: int8_t or uint8_t.
template <class B, int SUM, int A, int W>
static void emulated_dot_bytes() {
  emulated_check<SUM, A, W>();
  EmulatedTiles& tiles = emulated_tiles;
  for (int m = 0; m < tiles.shapes.rows[SUM]; m++)
    for (int n = 0; n < tiles.shapes.row_bytes[SUM] / 4; n++) {
      uint32_t sum;
      memcpy(&sum, tiles.data[SUM][m] + 4 * n, 4);
      for (int k = 0; k < tiles.shapes.rows[W]; k++)
        for (int i = 0; i < 4; i++)
          sum += uint32_t(int8_t(tiles.data[A][m][4 * k + i]) * B(tiles.data[W][k][4 * n + i]));
      memcpy(tiles.data[SUM][m] + 4 * n, &sum, 4);
    }
}
template <int SUM, int A, int W>
static void tile_dot_int8() {
  emulated_dot_bytes<int8_t, SUM, A, W>();
}
template <int SUM, int A, int W>
static void tile_dot_unsigned() {
  emulated_dot_bytes<uint8_t, SUM, A, W>();
}
