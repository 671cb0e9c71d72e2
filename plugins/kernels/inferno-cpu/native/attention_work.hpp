// A step's attention as a list of tiles, each computed by one thread; reading a tile's queries and
// writing its output.
#pragma once
#include <stdlib.h>

#include "attention.hpp"
#include "attention_tile.hpp"

namespace {

// Panels of a context in one split, for few and for many rows. Fixed, so that the result of a
// sequence does not depend on the rest of the batch.
constexpr int64_t kSplitPanelsOfFew = 16, kSplitPanelsOfMany = 128;

// Some rows of one sequence and one key/value head, over one split of their context.
struct Tile {
  int64_t sequence, context;
  int64_t query, position;  // of the first token: in the batch, in the sequence
  int64_t begin, end;       // panels
  int64_t partial;          // offset of its partial sums, in floats; -1 if the tile is complete
  int32_t head, tokens;
  int32_t split, num_splits;
  int32_t counter;  // index of the count of finished splits; -1 if there is one split
};

template <class T>
T* grown(T* old, int64_t* capacity, int64_t wanted) {
  if (wanted <= *capacity) return old;
  free(old);
  *capacity = wanted + wanted / 2;
  void* p = nullptr;
  if (posix_memalign(&p, 64, size_t(*capacity) * sizeof(T))) abort();
  return (T*)p;
}

// The tiles of a step, listed by the calling thread. Kept, so that the next layer allocates
// nothing.
struct WorkList {
  Tile* tiles = nullptr;
  float* partials = nullptr;
  int32_t* done = nullptr;
  int64_t tiles_capacity = 0, partials_capacity = 0, done_capacity = 0;
  int64_t count = 0, floats = 0, counters = 0;
};
thread_local WorkList own_work;

// Memory of a thread for one tile; kept.
struct alignas(64) Scratch {
  float scores[kTileRows * kKeys];
  bf16 weights[kTileRows * kKeys];
  float out[kTileRows * kStride];
  float q[kTileRows * kStride];
  float keys[kKeys * kMaxHeadDim], values[kKeys * kMaxHeadDim];
  float padded[16 * kMaxHeadDim];
  float best[kTileRows], fade[kTileRows], sums[kTileRows * 16];
};
thread_local Scratch* scratch = nullptr;

Scratch& own_scratch() {
  if (!scratch) {
    int64_t capacity = 0;
    scratch = grown<Scratch>(nullptr, &capacity, 1);
    memset((void*)scratch, 0, sizeof(Scratch));
  }
  return *scratch;
}

// Count the tiles, or list them: prompts before single tokens, and the last tokens of a prompt
// first, since they see the most keys.
void list_tiles(const AttentionStep& step, WorkList& work, bool write) {
  const int heads = step.H / step.K;
  const int64_t per_tile = max(1, kRows / heads);
  work.count = work.floats = work.counters = 0;
  for (int single = 0; single < 2; single++)
    for (int64_t s = 0; s < step.S; s++) {
      int64_t first = step.query_starts[s], tokens = step.query_starts[s + 1] - first,
              context = step.context_lens[s];
      if (tokens < 1 || (tokens == 1) != bool(single)) continue;
      for (int head = 0; head < step.K; head++)
        for (int64_t stop = tokens; stop > 0; stop -= per_tile) {
          int64_t start = max(0, stop - per_tile), position = context - tokens + start;
          int64_t reach = max(0, position + stop - start);
          int64_t begin = step.window ? max(0, position + 1 - step.window) / 16 : 0,
                  end = (reach + 15) / 16;
          int64_t rows = (stop - start) * heads,
                  split_panels = rows <= 16 ? kSplitPanelsOfFew : kSplitPanelsOfMany;
          int64_t num_splits = max(1, (end - begin + split_panels - 1) / split_panels);
          int32_t counter = num_splits > 1 ? int32_t(work.counters++) : -1;
          for (int64_t split = 0; split < num_splits; split++) {
            if (write) {
              Tile& tile = work.tiles[work.count];
              tile = {s,
                      context,
                      first + start,
                      position,
                      begin + split * split_panels,
                      min(end, begin + (split + 1) * split_panels),
                      num_splits > 1 ? work.floats : -1,
                      head,
                      int32_t(stop - start),
                      int32_t(split),
                      int32_t(num_splits),
                      counter};
            }
            work.count++;
            if (num_splits > 1) work.floats += rows * (step.C + 2);
          }
        }
    }
}

void list_work(const AttentionStep& step, WorkList& work) {
  list_tiles(step, work, false);
  work.tiles = grown(work.tiles, &work.tiles_capacity, work.count);
  work.partials = grown(work.partials, &work.partials_capacity, work.floats);
  work.done = grown(work.done, &work.done_capacity, work.counters);
  list_tiles(step, work, true);
  for (int64_t i = 0; i < work.counters; i++) work.done[i] = 0;
}

// ---- queries and output of a tile ----

template <class T>
const T* query_row(const AttentionStep& step, const Tile& tile, int r) {
  const int heads = step.H / step.K;
  return (const T*)step.q + (tile.query + r / heads) * step.q_stride +
         int64_t(tile.head * heads + r % heads) * step.C;
}
template <class T>
void read_queries_of(const AttentionStep& step, const Tile& tile, float* q) {
  const int rows = tile.tokens * (step.H / step.K);
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < step.C; c += 16)
      store(q + r * kStride + c, load(query_row<T>(step, tile, r) + c));
}
void read_queries(const AttentionStep& step, const Tile& tile, float* q) {
  switch (step.dtype) {
    case kFloat32: return read_queries_of<float>(step, tile, q);
    case kBFloat16: return read_queries_of<bf16>(step, tile, q);
    default: return read_queries_of<f16>(step, tile, q);
  }
}
#if defined(INFERNO_BF16)
void read_queries(const AttentionStep& step, const Tile& tile, bf16* q) {
  const int heads = step.H / step.K;
  for (int r = 0; r < tile.tokens * heads; r++)
    memcpy(q + r * kStride, query_row<bf16>(step, tile, r), size_t(step.C) * 2);
}
#endif

// Write one row of output: `out` divided by its sum of weights.
template <class T>
void write_row_of(const AttentionStep& step, const Tile& tile, int r, const float* out,
                  float total) {
  const int heads = step.H / step.K;
  T* y =
      (T*)step.out + ((tile.query + r / heads) * step.H + tile.head * heads + r % heads) * step.C;
  F32 scale = splat(total == 0.0f ? 0.0f : 1.0f / total);
  for (int c = 0; c < step.C; c += 16) store(y + c, load(out + c) * scale);
}
void write_row(const AttentionStep& step, const Tile& tile, int r, const float* out, float total) {
  switch (step.dtype) {
    case kFloat32: return write_row_of<float>(step, tile, r, out, total);
    case kBFloat16: return write_row_of<bf16>(step, tile, r, out, total);
    default: return write_row_of<f16>(step, tile, r, out, total);
  }
}

// Combine the splits of a context; called on the thread that finishes the last one.
void merge(const AttentionStep& step, const Tile& tile, const float* last, Scratch& own) {
  const int rows = tile.tokens * (step.H / step.K), C = step.C;
  const int64_t size = int64_t(rows) * (C + 2);
  const float* splits = last - int64_t(tile.split) * size;
  for (int r = 0; r < rows; r++) {
    float best = kNothing, total = 0.0f;
    for (int p = 0; p < tile.num_splits; p++) {
      float b = splits[p * size + rows * int64_t(C) + 2 * r];
      best = b > best ? b : best;
    }
    for (int c = 0; c < C; c += 16) store(own.out + c, splat(0.0f));
    for (int p = 0; p < tile.num_splits; p++) {
      const float* stats = splits + p * size + rows * int64_t(C) + 2 * r;
      float shrink[16];
      store(shrink, exp2_negative(splat(stats[0] - best)));
      total += stats[1] * shrink[0];
      for (int c = 0; c < C; c += 16)
        store(own.out + c, fma(load(splits + p * size + int64_t(r) * C + c), splat(shrink[0]),
                               load(own.out + c)));
    }
    write_row(step, tile, r, own.out, total);
  }
}

void finish(const AttentionStep& step, const Tile& tile, const WorkList& work, Scratch& own) {
  const int rows = tile.tokens * (step.H / step.K), C = step.C;
  if (tile.partial < 0) {
    for (int r = 0; r < rows; r++)
      write_row(step, tile, r, own.out + r * kStride, sum(load(own.sums + 16 * r)));
    return;
  }
  float* split = work.partials + tile.partial;
  for (int r = 0; r < rows; r++) {
    memcpy(split + int64_t(r) * C, own.out + r * kStride, size_t(C) * 4);
    split[rows * int64_t(C) + 2 * r] = own.best[r];
    split[rows * int64_t(C) + 2 * r + 1] = sum(load(own.sums + 16 * r));
  }
  if (__atomic_add_fetch(&work.done[tile.counter], 1, __ATOMIC_ACQ_REL) == tile.num_splits)
    merge(step, tile, split, own);
}

}  // namespace
