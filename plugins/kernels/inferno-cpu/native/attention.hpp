// Attention over the paged cache.
//
// The cache of a layer is made of panels: sixteen tokens of one key/value head. A panel of keys is [C][16], one of values
// [C / 16][16 tokens][16], so that sixteen scores, or sixteen channels, come out of one vector without horizontal sums, and a
// panel is read from its first byte to its last. Of bfloat16, two neighbours of the summed index lie in pairs, as the
// instruction that multiplies two at once wants them: keys [C / 2][16][2], values [C / 16][8][16][2]. A cache tensor is
// [block][head][block_size / 16][a panel]; scales of 8-bit caches are [block][head][block_size].
#pragma once
#include <cstdint>

#include "dtype.hpp"

enum CacheKind : int { kAsComputed = 0, kFp8 = 1, kInt8 = 2 };

// Sequence s owns the queries query_starts[s] to query_starts[s + 1], the newest tokens of its context_lens[s].
struct AttentionStep {
  int dtype, cache_kind;
  const void *q, *k, *v;                       // (T, H, C), (T, K, C), (T, K, C): heads side by side
  int64_t q_stride, k_stride, v_stride;        // between tokens, in elements
  void* out;                                   // (T, H, C), dense
  void *k_cache, *v_cache;
  float *k_scales, *v_scales;                  // 8-bit caches only
  const int64_t* slots;                        // where each token's k and v go: block * block_size + offset; < 0: nowhere
  const int32_t *query_starts, *context_lens;  // S + 1, S
  const int64_t* tables;                       // block ids, (S, table_stride)
  int64_t table_stride, S;
  int H, K, C, block_size;                     // H <= 128 K; C <= 256, a multiple of 16 as block_size
  float scale, soft_cap;                       // soft_cap 0: none
  int64_t window;                              // 0: none
};

struct Attention {
  // Stores the step's k and v, then attends.
  void (*attend)(const AttentionStep&);
};
