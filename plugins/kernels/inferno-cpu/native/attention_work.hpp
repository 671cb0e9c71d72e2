// A step's attention as a list of tiles, each computed by one thread; reading a tile's queries and
// writing its output.
#pragma once
#include <stdlib.h>

#include "attention.hpp"
#include "attention_softmax.hpp"
#include "attention_tile.hpp"

namespace {

// The order of a row's sums. It follows from the positions of its keys alone, so that a token's
// result is the same to the bit in every step, beside any others and on any number of threads:
//  - a chunk is 64 keys, from a multiple of 64 on (kPanels): their weights relative to the largest
//    score so far, rounded to the type that is multiplied, over 8-bit caches in a unit of the
//    chunk; their values are added one after the other to the earlier ones', which fade;
//  - a run is 256 keys, from a multiple of 256 on: its chunks, one after the other, from nothing;
//  - a stretch is 2048 keys, from a multiple of 2048 on: the sums of its runs, one after the other;
//  - a row is the sums of its stretches, one after the other.
// Keys that a row does not see weigh 0. Where another row of its tile has a chunk, a run or a
// stretch more, that adds nothing, which changes no bit but the sign of a zero: see write_row.
// A tile ends where a run or a stretch does, as its rows are few or many; that decides who adds up
// the runs, not the order.
constexpr int64_t kRunPanels = 16, kStretchPanels = 128;
static_assert(kRunPanels % kPanels == 0 && kStretchPanels % kRunPanels == 0, "");

// Tokens of a sequence, one after the other. The rows of a replayed step are sequences of one
// token; several of them may be of one sequence, as drafts are, and are one span: each key is then
// read once.
struct Span {
  int64_t sequence;  // whose block table has them all
  int64_t query, tokens, context;
  int64_t stored;  // tokens of longer spans before it
  bool singles;    // sequences of one token
};

// Some rows of one span and one key/value head, over one split of their context.
struct Tile {
  int64_t sequence, context;
  int64_t query, position;  // of the first token: in the batch, in the sequence
  int64_t begin, end;       // panels
  int64_t each;             // panels of a split: a run's or a stretch's
  int64_t partial;          // offset of its partial sums, in floats; -1 if the tile is complete
  int32_t head, tokens;
  int32_t split, num_splits;
  int32_t counter;  // index of the count of finished splits; -1 if there is one split
  bool stores;      // its span is one token, which its last split stores
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
  Span* spans = nullptr;
  Tile* tiles = nullptr;
  float* partials = nullptr;
  int32_t* done = nullptr;
  int64_t spans_capacity = 0, tiles_capacity = 0, partials_capacity = 0, done_capacity = 0;
  int64_t num_spans = 0, count = 0, floats = 0, counters = 0;
  int64_t stored = 0;  // tokens of spans of more than one

  ~WorkList() { free(spans), free(tiles), free(partials), free(done); }
};
thread_local WorkList own_work;

constexpr int padded_bests(int rows) { return (rows + 15) / 16 * 16; }
constexpr int kBests = padded_bests(kTileRows);

// Sums over some keys of the rows of a tile. Of each: its weighted values in C channels, sixteen
// sums of its weights, and the largest score, which both are relative to. That is kNothing if there
// was no key yet; the others then count as zeros, whatever they are.
struct alignas(64) TileSums {
  float out[kTileRows * kStride];
  float weights[kTileRows * 16];
  float best[kBests];

  void clear(int rows, int C) {
    for (int r = 0; r < rows; r++) {
      for (int c = 0; c < C; c += 16) store(out + r * kStride + c, splat(0.0f));
      store(weights + 16 * r, splat(0.0f));
      best[r] = kNothing;
    }
  }
};

// Memory of a thread for one tile; kept until the thread ends.
struct alignas(64) Scratch {
  TileSums sums, run;  // over the whole tile; over a run that is not its first
  float scores[kTileRows * kKeys];
  bf16 weights[kTileRows * kKeys];
  float q[kTileRows * kStride];
  float keys[kKeys * kMaxHeadDim], values[kKeys * kMaxHeadDim];
  float padded[16 * kMaxHeadDim];
  float row[kMaxHeadDim];
  float fade[kBests];
  float q_units[kTileRows], weights_units[kTileRows];  // see attention_softmax.hpp
};
struct OwnScratch {
  Scratch* memory = nullptr;
  ~OwnScratch() { free(memory); }
};
thread_local OwnScratch scratch;

Scratch& own_scratch() {
  if (!scratch.memory) {
    int64_t capacity = 0;
    scratch.memory = grown<Scratch>(nullptr, &capacity, 1);
    memset((void*)scratch.memory, 0, sizeof(Scratch));
  }
  return *scratch.memory;
}

// Whether sequence s + 1 is the next token of the one that sequence s is a token of: the block to
// which s stores its token is in its table too.
bool continues(const AttentionStep& step, int64_t s) {
  int64_t first = step.query_starts[s];
  if (step.query_starts[s + 1] != first + 1 || step.query_starts[s + 2] != first + 2) return false;
  if (step.context_lens[s] < 1 || step.context_lens[s + 1] != step.context_lens[s] + 1)
    return false;
  if (step.slots[first] < 0 || step.slots[first + 1] < 0) return false;
  const int64_t* block =
      step.tables + s * step.table_stride + (step.context_lens[s] - 1) / step.block_size;
  return block[0] == block[step.table_stride];
}

void list_spans(const AttentionStep& step, WorkList& work) {
  work.spans = grown(work.spans, &work.spans_capacity, step.S);
  work.num_spans = work.stored = 0;
  for (int64_t s = 0; s < step.S; s++) {
    int64_t first = step.query_starts[s];
    bool single = step.query_starts[s + 1] == first + 1;
    while (single && s + 1 < step.S && continues(step, s)) s++;
    int64_t tokens = step.query_starts[s + 1] - first;
    if (tokens < 1) continue;
    work.spans[work.num_spans++] = {s, first, tokens, step.context_lens[s], work.stored, single};
    if (tokens > 1) work.stored += tokens;
  }
}

// Floats of a split's partial sums: C + 16 for each row, and the rows' largest scores.
constexpr int64_t floats_of(int64_t rows, int C) {
  return rows * (C + 16) + padded_bests(int(rows));
}

// Count the tiles, or list them: prompts before single tokens, and the last tokens of a prompt
// first, since they see the most keys.
void list_tiles(const AttentionStep& step, WorkList& work, bool write) {
  const int heads = step.H / step.K;
  const int64_t per_tile = max(1, kRows / heads);
  work.count = work.floats = work.counters = 0;
  for (int single = 0; single < 2; single++)
    for (const Span* span = work.spans; span < work.spans + work.num_spans; span++) {
      if ((span->tokens == 1) != bool(single)) continue;
      for (int head = 0; head < step.K; head++)
        for (int64_t stop = span->tokens; stop > 0; stop -= per_tile) {
          int64_t start = max(0, stop - per_tile), position = span->context - span->tokens + start;
          int64_t reach = max(0, position + stop - start);
          int64_t begin = step.window ? max(0, position + 1 - step.window) / 16 : 0,
                  end = (reach + 15) / 16;
          int64_t rows = (stop - start) * heads;
          int64_t each = span->singles || rows <= 16 ? kRunPanels : kStretchPanels;
          int64_t first = begin / each, num_splits = max(1, (end + each - 1) / each - first);
          int32_t counter = num_splits > 1 ? int32_t(work.counters++) : -1;
          for (int64_t split = 0; split < num_splits; split++) {
            if (write) {
              Tile& tile = work.tiles[work.count];
              tile = {span->sequence,
                      span->context,
                      span->query + start,
                      position,
                      max(begin, (first + split) * each),
                      min(end, (first + split + 1) * each),
                      each,
                      num_splits > 1 ? work.floats : -1,
                      head,
                      int32_t(stop - start),
                      int32_t(split),
                      int32_t(num_splits),
                      counter,
                      span->tokens == 1};
            }
            work.count++;
            if (num_splits > 1) work.floats += floats_of(rows, step.C);
          }
        }
    }
}

void list_work(const AttentionStep& step, WorkList& work) {
  list_spans(step, work);
  list_tiles(step, work, false);
  work.tiles = grown(work.tiles, &work.tiles_capacity, work.count);
  work.partials = grown(work.partials, &work.partials_capacity, work.floats);
  work.done = grown(work.done, &work.done_capacity, work.counters);
  list_tiles(step, work, true);
  for (int64_t i = 0; i < work.counters; i++) work.done[i] = 0;
}

// ---- queries and output of a tile ----

// The row of a tile among the step's T x H.
int64_t row_of(const AttentionStep& step, const Tile& tile, int r) {
  const int heads = step.H / step.K;
  return (tile.query + r / heads) * step.H + tile.head * heads + r % heads;
}

template <class T>
const T* query_row(const AttentionStep& step, const Tile& tile, int r) {
  const int heads = step.H / step.K;
  return (const T*)step.q + (tile.query + r / heads) * step.q_stride +
         int64_t(tile.head * heads + r % heads) * step.C;
}
template <class T>
void read_query(const AttentionStep& step, const Tile& tile, int r, float* to) {
  const T* q = query_row<T>(step, tile, r);
  for (int c = 0; c < step.C; c += 16) store(to + c, load(q + c));
}
void read_query(const AttentionStep& step, const Tile& tile, int r, float* to) {
  switch (step.dtype) {
    case kFloat32: return read_query<float>(step, tile, r, to);
    case kBFloat16: return read_query<bf16>(step, tile, r, to);
    default: return read_query<f16>(step, tile, r, to);
  }
}

// Read the tile's queries as X, for a cache of E.
template <class E, class X>
void read_queries(const AttentionStep& step, const Tile& tile, Scratch& own) {
  X* q = (X*)own.q;
  for (int r = 0; r < tile.tokens * (step.H / step.K); r++) {
    if constexpr (sizeof(E) == 1) {
      read_query(step, tile, r, own.row);
      own.q_units[r] = scale_query<E>(own.row, step.C, q + r * kStride);
    } else if constexpr (__is_same(X, float)) {
      read_query(step, tile, r, q + r * kStride);
    } else {
      memcpy(q + r * kStride, query_row<X>(step, tile, r), size_t(step.C) * sizeof(X));
    }
  }
}

// Write one row of output: its weighted values divided by its sum of weights.
template <class T>
void write_row_of(const AttentionStep& step, const Tile& tile, int r, const TileSums& sums) {
  T* y = (T*)step.out + row_of(step, tile, r) * step.C;
  const float total = sum(load(sums.weights + 16 * r)), *out = sums.out + r * kStride;
  F32 scale = splat(total == 0.0f ? 0.0f : 1.0f / total);
  for (int c = 0; c < step.C; c += 16)
    store(y + c, fma(load(out + c), scale, splat(0.0f)));  // + 0: no zero is negative
}
void write_row(const AttentionStep& step, const Tile& tile, int r, const TileSums& sums) {
  switch (step.dtype) {
    case kFloat32: return write_row_of<float>(step, tile, r, sums);
    case kBFloat16: return write_row_of<bf16>(step, tile, r, sums);
    default: return write_row_of<f16>(step, tile, r, sums);
  }
}

// Add to the sums of `rows` rows those over later keys, whose rows are `stride` apart. Adding
// nothing, or to nothing, changes no bit.
void add_sums(const float* out, int64_t stride, const float* weights, const float* best, int rows,
              int C, TileSums& to) {
  float old[kBests], fresh[kBests];
  for (int r = 0; r < rows; r += 16) {
    F32 a = load(to.best + r), b = load(best + r), top = max(a, b);
    store(old + r, fade_of(a, top)), store(fresh + r, fade_of(b, top)), store(to.best + r, top);
  }
  for (int r = 0; r < rows; r++) {
    F32 x = splat(old[r]), y = splat(fresh[r]);
    float *sums = to.out + r * kStride, *totals = to.weights + 16 * r;
    for (int c = 0; c < C; c += 16)
      store(sums + c, fma(load(out + r * stride + c), y, load(sums + c) * x));
    store(totals, fma(load(weights + 16 * r), y, load(totals) * x));
  }
}

// Add `part` to `whole`, and begin it again.
void move_sums(TileSums& part, int rows, int C, TileSums& whole) {
  add_sums(part.out, kStride, part.weights, part.best, rows, C, whole);
  for (int r = 0; r < rows; r++) part.best[r] = kNothing;
}

// Combine the splits of a context; called on the thread that finishes the last one.
void merge(const AttentionStep& step, const Tile& tile, const float* last, Scratch& own) {
  const int rows = tile.tokens * (step.H / step.K), C = step.C;
  const int64_t size = floats_of(rows, C), first = tile.begin / tile.each - tile.split;
  const float* split = last - tile.split * size;
  TileSums &whole = own.sums, &later = own.run, *stretch = &whole;
  whole.clear(rows, C);
  for (int p = 0; p < tile.num_splits; p++, split += size) {
    if (p > 0 && (first + p) * tile.each % kStretchPanels == 0) {
      if (stretch == &later) move_sums(later, rows, C, whole);
      if (stretch == &whole) later.clear(rows, C);
      stretch = &later;
    }
    const float* weights = split + int64_t(rows) * C;
    add_sums(split, C, weights, weights + 16 * rows, rows, C, *stretch);
  }
  if (stretch == &later) move_sums(later, rows, C, whole);
  for (int r = 0; r < rows; r++) write_row(step, tile, r, whole);
}

// Write the output of a tile that is complete, or keep its sums for `merge`.
void finish(const AttentionStep& step, const Tile& tile, const WorkList& work, Scratch& own) {
  TileSums& sums = own.sums;
  const int rows = tile.tokens * (step.H / step.K), C = step.C;
  if (tile.partial < 0) {
    for (int r = 0; r < rows; r++) write_row(step, tile, r, sums);
    return;
  }
  float* split = work.partials + tile.partial;
  for (int r = 0; r < rows; r++)
    memcpy(split + int64_t(r) * C, sums.out + r * kStride, size_t(C) * 4);
  float* weights = split + int64_t(rows) * C;
  memcpy(weights, sums.weights, size_t(rows) * 64);
  memcpy(weights + 16 * rows, sums.best, size_t(padded_bests(rows)) * 4);
  if (__atomic_add_fetch(&work.done[tile.counter], 1, __ATOMIC_ACQ_REL) == tile.num_splits)
    merge(step, tile, split, own);
}

}  // namespace
