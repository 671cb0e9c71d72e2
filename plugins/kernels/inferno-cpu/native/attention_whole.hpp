// Attention of whole sequences, of which nothing is kept: a token sees all others, or those less
// than `window` away on either side. Computed in float32 whatever the type of the elements is.
//
// A tile is some tokens of one sequence, and the query heads of one key/value head. A chunk of its
// keys and values becomes panels, which all of its rows read; their sums run on from chunk to chunk.
// Where tiles and chunks begin follows from positions alone: a sequence's bits are the same whatever
// is beside it.
#pragma once
#include "attention_softmax.hpp"
#include "attention_tile.hpp"
#include "attention_work.hpp"
#include "parallel.hpp"

namespace {

// Bring `known` keys and values of a tile's sequence, from position `first` on, into panels, with
// zeros up to a whole one.
template <class T>
void take_panels(const AttentionStep& step, const Tile& tile, int64_t first, int64_t known,
                 Scratch& own) {
  const int C = step.C;
  const int64_t token = tile.query - tile.position + first, head = int64_t(tile.head) * C;
  const T *k = (const T*)step.k + token * step.k_stride + head,
          *v = (const T*)step.v + token * step.v_stride + head;
  for (int64_t panel = 0; panel < known; panel += 16) {
    float* values = own.values + panel * C;
    for (int64_t t = 0; t < 16; t++) {
      const bool is_known = panel + t < known;
      const int64_t row = is_known ? panel + t : 0;
      for (int c = 0; c < C; c += 16) {
        store(own.padded + t * C + c, is_known ? load(k + row * step.k_stride + c) : splat(0.0f));
        store(values + 16 * c + 16 * t, is_known ? load(v + row * step.v_stride + c) : splat(0.0f));
      }
    }
    transpose_rows(own.padded, C, own.keys + panel * C);
  }
}

// Attend from some rows to a chunk of keys, the first at position `first`. Whole: to all of them,
// and there are kKeys.
template <bool Whole>
void attend_chunk(const AttentionStep& step, const Tile& tile, const Softmax& softmax,
                  int64_t first, int64_t known, int start, int rows, Scratch& own) {
  const int C = step.C, heads = step.H / step.K, count = int((known + 15) / 16);
  const float *keys[kPanels], *values[kPanels];
  for (int p = 0; p < kPanels; p++)
    keys[p] = own.keys + 16 * p * C, values[p] = own.values + 16 * p * C;
  float *scores = own.scores + start * kKeys, *fade = own.fade + start, tops[16];
  TileSums& sums = own.sums;
  const auto each_row = [&](const auto& body) {
    for (int r = 0; r < rows; r++) {
      const int64_t at = tile.position + (start + r) / heads - first;
      const int64_t low = step.window ? max(0, at + 1 - step.window) : 0;
      body(r, low, step.window ? min(known, at + step.window) : known);
    }
  };
  with_rows(rows, [&](auto n) {
    score_panels<decltype(n)::value, false>(own.q + start * kStride, C, keys, keys, 0, count,
                                            scores);
  });
  store(tops, splat(kNothing));
  each_row([&](int r, int64_t low, int64_t high) {
    tops[r] = softmax.exponents_of<false, Whole>(scores + r * kKeys, 1.0f, nullptr, 0, 0, count,
                                                 low, high);
  });
  raise(sums.best + start, tops, rows, fade);
  each_row([&](int r, int64_t low, int64_t high) {
    softmax.weights_of<false, Whole, float>(scores + r * kKeys, scores + r * kKeys, 0, count, low,
                                            high, sums.best[start + r], fade[r],
                                            sums.weights + 16 * (start + r));
  });
  with_rows(rows, [&](auto n) {
    weigh_panels<decltype(n)::value, false, false>(scores, values, values, count, 0, C / 16, fade,
                                                   nullptr, sums.out + start * kStride);
  });
}

template <class T>
void attend_tile_whole(const AttentionStep& step, const Tile& tile) {
  Scratch& own = own_scratch();
  const int heads = step.H / step.K, rows = tile.tokens * heads;
  read_queries<float, float>(step, tile, own);
  own.sums.clear(rows, step.C);
  Softmax softmax{};
  softmax.scale = step.scale * kLog2e;
  for (int64_t first = tile.begin; first < tile.end; first += kKeys) {
    const int64_t known = min(kKeys, tile.end - first);
    take_panels<T>(step, tile, first, known, own);
    for (int start = 0; start < rows; start += kGroup) {
      const int some = int(min(kGroup, rows - start));
      const int64_t begin = tile.position + start / heads,
                    last = tile.position + (start + some - 1) / heads;
      if (step.window && (first + known + step.window <= begin + 1 || last + step.window <= first))
        continue;  // no row sees any
      if (known == kKeys && !step.window) {
        attend_chunk<true>(step, tile, softmax, first, known, start, some, own);
      } else {
        attend_chunk<false>(step, tile, softmax, first, known, start, some, own);
      }
    }
  }
  for (int r = 0; r < rows; r++) write_row(step, tile, r, own.sums);
}

void attend_whole(const WholeStep& step) {
  WorkList& work = own_work;
  const int64_t each = max(1, kTileRows / (step.H / step.K));
  work.count = 0;
  for (int64_t s = 0; s < step.S; s++)
    work.count += (step.query_starts[s + 1] - step.query_starts[s] + each - 1) / each * step.K;
  work.tiles = grown(work.tiles, &work.tiles_capacity, work.count);
  Tile* next = work.tiles;
  for (int64_t s = 0; s < step.S; s++) {
    const int64_t first = step.query_starts[s], length = step.query_starts[s + 1] - first;
    for (int head = 0; head < step.K; head++)
      for (int64_t at = 0; at < length; at += each) {
        Tile tile{};
        tile.sequence = s, tile.context = length, tile.head = head;
        tile.query = first + at, tile.position = at, tile.tokens = int32_t(min(each, length - at));
        tile.begin = step.window ? max(0, at + 1 - step.window) : 0;
        tile.end = step.window ? min(length, at + tile.tokens - 1 + step.window) : length;
        *next++ = tile;
      }
  }
  with_type(step.dtype, [&](auto element) {
    using T = decltype(element);
    parallel_chunks(work.count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) attend_tile_whole<T>(step, work.tiles[i]);
    });
  });
}

}  // namespace
