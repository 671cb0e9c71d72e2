// Attention over the paged cache.
//
// The cache of a layer consists of panels: sixteen tokens of one key/value head. A panel of keys is
// [C][16], one of values [C / 16][16 tokens][16], so that a vector holds sixteen scores or sixteen
// channels, nothing is summed across lanes, and a panel is read in order. In bfloat16 and in 8
// bits, neighbours along the summed index are stored in pairs, as the instructions that multiply
// pairs read them: keys [C / 2][16][2], values [C / 16][8][16][2]. A cache tensor is
// [block][head][block_size / 16][panel]; scales of 8-bit caches are [block][head][block_size].
#pragma once
#include <cstdint>

#include "dtype.hpp"

enum CacheKind : int { kAsComputed = 0, kFp8 = 1, kInt8 = 2 };

// What is added to scores for a constant part of the keys (inferno/contracts/attention.py).
struct Waves {
  const float* amplitudes;  // (T, H, count)
  const int32_t* used;      // (K, count), of lines
  const float* lines;       // each `stride` positions, a multiple of 16
  int64_t stride;
  int count;  // 0: nothing is added
};

// Queries query_starts[s] .. query_starts[s + 1] are the last of the context_lens[s] tokens of
// sequence s.
struct AttentionStep {
  int dtype, cache_kind;
  const void *q, *k, *v;                 // (T, H, C), (T, K, C), (T, K, C): heads contiguous
  int64_t q_stride, k_stride, v_stride;  // between tokens, in elements
  void* out;                             // (T, H, C), dense
  void *k_cache, *v_cache;
  float *k_scales, *v_scales;  // 8-bit caches only
  const int64_t* slots;  // of each token's k and v: block * block_size + offset; < 0: not stored
  const int32_t *query_starts, *context_lens;  // S + 1, S
  const int64_t* tables;                       // block ids, (S, table_stride)
  int64_t table_stride, S;
  int H, K, C, block_size;  // H <= 128 K; C <= 256; C and block_size divisible by 16
  float scale, soft_cap;    // soft_cap 0: none
  int64_t window;           // 0: none
  Waves waves;              // 8-bit caches only
};

// Only dtype, q, k and v with their strides, out, query_starts, S, H, K, C, scale and window are read.
struct WholeStep : AttentionStep {};

struct Attention {
  // Store the step's k and v, then attend.
  void (*attend)(const AttentionStep&);
  // Attend to all tokens of each sequence, or to those less than `window` away on either side. A
  // sequence's tokens are query_starts[s] .. query_starts[s + 1].
  void (*attend_whole)(const WholeStep&);
};
