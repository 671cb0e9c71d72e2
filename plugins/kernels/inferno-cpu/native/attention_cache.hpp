// Where a token's numbers lie in the cache, and how they get there.
#pragma once
#include "attention.hpp"
#include "attention_tile.hpp"

namespace {

// The panel of a sequence's tokens 16 i to 16 i + 15, counted in panels of the whole cache; its scales are 16 times that far.
INL int64_t panel_of(const AttentionStep& step, int64_t sequence, int head, int64_t i) {
  int64_t each = step.block_size / 16;
  int64_t block = step.tables[sequence * step.table_stride + i / each];
  return (block * step.K + head) * each + i % each;
}

INL void put(float* to, float x, float) { *to = x; }
INL void put(fp8* to, float x, float inverse) { from_float(to, x * inverse); }
INL void put(int8_t* to, float x, float inverse) { *to = int8_t(__builtin_lrintf(x * inverse)); }

// Largest number of an 8-bit type, and what one of its numbers is worth beside how it is read.
INL float largest_of(const fp8*) { return 448.0f; }
INL float largest_of(const int8_t*) { return 127.0f; }
INL float read_as(const fp8*) { return kFp8Read; }
INL float read_as(const int8_t*) { return 1.0f; }

// A token's row as the cache holds it, and its scale. The row itself where it is stored as it is computed.
template <class E, class T>
INL const E* encoded(const T* x, int C, E* room, float* scales, int64_t token) {
  if constexpr (sizeof(E) > 1) {
    (void)C, (void)room, (void)scales, (void)token;
    return x;
  } else {
    float top = 0.0f;
    for (int c = 0; c < C; c++) {
      float a = __builtin_fabsf(to_float(x[c]));
      top = a <= top ? top : a;  // NaN is kept: what it touches is NaN, as it would be without a scale
    }
    bool usable = top > 0.0f && top <= 3.4e38f;
    float inverse = usable ? largest_of(room) / top : 0.0f;
    if (!(inverse <= 3.4e38f)) inverse = 0.0f;  // too small to be told from nothing
    for (int c = 0; c < C; c++) put(room + c, to_float(x[c]), inverse);
    scales[token] = inverse > 0.0f ? read_as(room) / inverse : top > 3.4e38f || top != top ? __builtin_nanf("") : 0.0f;
    return room;
  }
}

// Token `t`'s key and value of one head into place.
template <class E, class T>
void store_token(const AttentionStep& step, int64_t t, int head) {
  int64_t slot = step.slots[t];
  if (slot < 0) return;
  const int C = step.C, i = int(slot % 16);
  int64_t in_head = slot % step.block_size, block = slot / step.block_size;
  int64_t token = (block * step.K + head) * step.block_size + in_head, at = (token - i) * C;
  E room[kMaxHeadDim];
  const E* k = encoded<E>((const T*)step.k + t * step.k_stride + int64_t(head) * C, C, room, step.k_scales, token);
  E* keys = (E*)step.k_cache + at;
  if constexpr (sizeof(E) == 2 && !__is_same(E, f16)) {
    for (int c = 0; c < C; c += 2) memcpy(keys + 16 * c + 2 * i, k + c, 4);
  } else {
    for (int c = 0; c < C; c++) keys[16 * c + i] = k[c];
  }
  const E* v = encoded<E>((const T*)step.v + t * step.v_stride + int64_t(head) * C, C, room, step.v_scales, token);
  E* values = (E*)step.v_cache + at;
  if constexpr (sizeof(E) == 2 && !__is_same(E, f16)) {
    for (int b = 0; b < C; b += 16)
      for (int c = 0; c < 16; c++) values[16 * b + 32 * (i / 2) + 2 * c + i % 2] = v[b + c];
  } else {
    for (int b = 0; b < C; b += 16) memcpy(values + 16 * b + 16 * i, v + b, 16 * sizeof(E));
  }
}

// A copy of a panel of values whose tokens from `known` on are nothing: what lies there may be NaN.
template <class E>
void copy_known(const E* panel, int C, int known, E* to) {
  memcpy(to, panel, sizeof(E) * 16 * size_t(C));
  constexpr bool pairs = __is_same(E, bf16);
  for (int b = 0; b < C; b += 16)
    for (int t = known; t < 16; t++)
      for (int c = 0; c < 16; c++) memset(to + 16 * b + (pairs ? 32 * (t / 2) + 2 * c + t % 2 : 16 * t + c), 0, sizeof(E));
}

}  // namespace
