// Storing keys and values in the cache.
#pragma once
#include "attention.hpp"
#include "attention_tile.hpp"

namespace {

// Index in the whole cache of the panel with tokens 16 i to 16 i + 15 of a sequence; its scales
// begin at 16 times that index.
INL int64_t panel_of(const AttentionStep& step, int64_t sequence, int head, int64_t i) {
  int64_t each = step.block_size / 16;
  int64_t block = step.tables[sequence * step.table_stride + i / each];
  return (block * step.K + head) * each + i % each;
}

INL void put(fp8* to, F32 x) {
  float each[16];
  store(each, x);
  for (int i = 0; i < 16; i++) from_float(to + i, each[i]);
}
INL void put(int8_t* to, F32 x) { store_int8((uint8_t*)to, round_i32(x)); }

// Largest value of an 8-bit type.
INL float largest_of(const fp8*) { return 448.0f; }
INL float largest_of(const int8_t*) { return 127.0f; }

// Encode a token's row for the cache and store its scale. Returns x itself if the types are the
// same.
template <class E, class T>
INL const E* encoded(const T* x, int C, E* capacity, float* scales, int64_t token) {
  if constexpr (sizeof(E) > 1) {
    (void)C, (void)capacity, (void)scales, (void)token;
    return x;
  } else {
    F32 tops = splat(0.0f), wrong = splat(0.0f);
    for (int c = 0; c < C; c += 16) {
      F32 v = load(x + c);
      tops = max(abs(v), tops), wrong = fma(v, splat(0.0f), wrong);
    }
    float top = largest(tops);
    bool finite = sum(wrong) == 0.0f;  // else the scale is NaN, and spreads as they would
    float inverse = finite && top > 0.0f ? largest_of(capacity) / top : 0.0f;
    if (!(inverse <= 3.4e38f)) inverse = 0.0f;  // too small: stored as zero
    for (int c = 0; c < C; c += 16) {
      F32 v = finite ? load(x + c) : splat(0.0f);
      put(capacity + c, v * splat(inverse));
    }
    scales[token] = !finite ? __builtin_nanf("") : inverse > 0.0f ? 1.0f / inverse : 0.0f;
    return capacity;
  }
}

// Store key and value of token `t` for one head.
template <class E, class T>
void store_token(const AttentionStep& step, int64_t t, int head) {
  int64_t slot = step.slots[t];
  if (slot < 0) return;
  const int C = step.C, i = int(slot % 16);
  int64_t in_head = slot % step.block_size, block = slot / step.block_size;
  int64_t token = (block * step.K + head) * step.block_size + in_head, at = (token - i) * C;
  E capacity[kMaxHeadDim];
  const E* k = encoded<E>((const T*)step.k + t * step.k_stride + int64_t(head) * C, C, capacity,
                          step.k_scales, token);
  E* keys = (E*)step.k_cache + at;
  if constexpr (kPaired<E>) {
    for (int c = 0; c < C; c += 2) memcpy(keys + 16 * c + 2 * i, k + c, 2 * sizeof(E));
  } else {
    for (int c = 0; c < C; c++) keys[16 * c + i] = k[c];
  }
  const E* v = encoded<E>((const T*)step.v + t * step.v_stride + int64_t(head) * C, C, capacity,
                          step.v_scales, token);
  E* values = (E*)step.v_cache + at;
  if constexpr (kPaired<E>) {
    for (int b = 0; b < C; b += 16)
      for (int c = 0; c < 16; c++) values[16 * b + 32 * (i / 2) + 2 * c + i % 2] = v[b + c];
  } else {
    for (int b = 0; b < C; b += 16) memcpy(values + 16 * b + 16 * i, v + b, 16 * sizeof(E));
  }
}

// Copy a panel of values with zeros for the tokens from `known` on, which may hold NaN.
template <class E>
void copy_known(const E* panel, int C, int known, E* to) {
  memcpy(to, panel, sizeof(E) * 16 * size_t(C));
  for (int b = 0; b < C; b += 16)
    for (int t = known; t < 16; t++)
      for (int c = 0; c < 16; c++)
        memset(to + 16 * b + (kPaired<E> ? 32 * (t / 2) + 2 * c + t % 2 : 16 * t + c), 0,
               sizeof(E));
}

}  // namespace
