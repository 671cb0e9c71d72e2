// A step's attention as a list of items, each for one thread; what goes into an item and what comes out of it.
#pragma once
#include <stdlib.h>

#include "attention.hpp"
#include "attention_tile.hpp"

namespace {

// Panels of a context that one thread takes in one piece. Fixed: what a sequence gets does not depend on its neighbours.
constexpr int64_t kPieceOfFew = 16, kPieceOfMany = 128;

// Some rows of one sequence and one key/value head, over some of their panels.
struct Item {
  int64_t sequence, context;
  int64_t query, position;    // of the first token: in T, in the sequence
  int64_t begin, end;         // panels
  int64_t partial;            // where its unfinished sums go, in floats; -1 where they are complete
  int32_t head, tokens;
  int32_t part, parts;
  int32_t counter;            // how many of the parts are done
};

template <class T>
T* grown(T* old, int64_t* room, int64_t wanted) {
  if (wanted <= *room) return old;
  free(old);
  *room = wanted + wanted / 2;
  void* p = nullptr;
  if (posix_memalign(&p, 64, size_t(*room) * sizeof(T))) abort();
  return (T*)p;
}

// The step's work, listed by the thread that calls; kept, so that the next layer needs no memory.
struct Plan {
  Item* items = nullptr;
  float* partials = nullptr;
  int32_t* done = nullptr;
  int64_t items_room = 0, partials_room = 0, done_room = 0;
  int64_t count = 0, floats = 0, counters = 0;
};
thread_local Plan own_plan;

// What a thread needs to work on one item; kept.
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
    int64_t room = 0;
    scratch = grown<Scratch>(nullptr, &room, 1);
    memset((void*)scratch, 0, sizeof(Scratch));
  }
  return *scratch;
}

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Counts the items, or lists them: long prompts first, their last tokens (which see the most) first.
void list_items(const AttentionStep& step, Plan& plan, bool write) {
  const int heads = step.H / step.K;
  const int64_t per_tile = most(1, kRows / heads);
  plan.count = plan.floats = plan.counters = 0;
  for (int single = 0; single < 2; single++)
    for (int64_t s = 0; s < step.S; s++) {
      int64_t first = step.query_starts[s], tokens = step.query_starts[s + 1] - first, context = step.context_lens[s];
      if (tokens < 1 || (tokens == 1) != bool(single)) continue;
      for (int head = 0; head < step.K; head++)
        for (int64_t stop = tokens; stop > 0; stop -= per_tile) {
          int64_t start = most(0, stop - per_tile), position = context - tokens + start;
          int64_t reach = most(0, position + stop - start);
          int64_t begin = step.window ? most(0, position + 1 - step.window) / 16 : 0, end = (reach + 15) / 16;
          int64_t rows = (stop - start) * heads, piece = rows <= 16 ? kPieceOfFew : kPieceOfMany;
          int64_t parts = most(1, (end - begin + piece - 1) / piece);
          int32_t counter = parts > 1 ? int32_t(plan.counters++) : -1;
          for (int64_t part = 0; part < parts; part++) {
            if (write) {
              Item& item = plan.items[plan.count];
              item = {s, context, first + start, position, begin + part * piece, least(end, begin + (part + 1) * piece),
                      parts > 1 ? plan.floats : -1, head, int32_t(stop - start), int32_t(part), int32_t(parts), counter};
            }
            plan.count++;
            if (parts > 1) plan.floats += rows * (step.C + 2);
          }
        }
    }
}

void make_plan(const AttentionStep& step, Plan& plan) {
  list_items(step, plan, false);
  plan.items = grown(plan.items, &plan.items_room, plan.count);
  plan.partials = grown(plan.partials, &plan.partials_room, plan.floats);
  plan.done = grown(plan.done, &plan.done_room, plan.counters);
  list_items(step, plan, true);
  for (int64_t i = 0; i < plan.counters; i++) plan.done[i] = 0;
}

// ---- in and out of a tile -------------------------------------------------------------------------------------------

template <class T>
const T* query_row(const AttentionStep& step, const Item& item, int r) {
  const int heads = step.H / step.K;
  return (const T*)step.q + (item.query + r / heads) * step.q_stride + int64_t(item.head * heads + r % heads) * step.C;
}
template <class T>
void read_queries_of(const AttentionStep& step, const Item& item, float* q) {
  const int rows = item.tokens * (step.H / step.K);
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < step.C; c += 16) store(q + r * kStride + c, load(query_row<T>(step, item, r) + c));
}
void read_queries(const AttentionStep& step, const Item& item, float* q) {
  switch (step.dtype) {
    case kFloat32: return read_queries_of<float>(step, item, q);
    case kBFloat16: return read_queries_of<bf16>(step, item, q);
    default: return read_queries_of<f16>(step, item, q);
  }
}
#if defined(INFERNO_AVX512_BF16)
void read_queries(const AttentionStep& step, const Item& item, bf16* q) {
  const int heads = step.H / step.K;
  for (int r = 0; r < item.tokens * heads; r++) memcpy(q + r * kStride, query_row<bf16>(step, item, r), size_t(step.C) * 2);
}
#endif

// One row of output: `out` over its sum of weights.
template <class T>
void write_row_of(const AttentionStep& step, const Item& item, int r, const float* out, float total) {
  const int heads = step.H / step.K;
  T* y = (T*)step.out + ((item.query + r / heads) * step.H + item.head * heads + r % heads) * step.C;
  F32 scale = splat(total == 0.0f ? 0.0f : 1.0f / total);
  for (int c = 0; c < step.C; c += 16) store(y + c, load(out + c) * scale);
}
void write_row(const AttentionStep& step, const Item& item, int r, const float* out, float total) {
  switch (step.dtype) {
    case kFloat32: return write_row_of<float>(step, item, r, out, total);
    case kBFloat16: return write_row_of<bf16>(step, item, r, out, total);
    default: return write_row_of<f16>(step, item, r, out, total);
  }
}

// The parts of a context, put together by whoever finishes the last of them.
void merge(const AttentionStep& step, const Item& item, const float* last, Scratch& own) {
  const int rows = item.tokens * (step.H / step.K), C = step.C;
  const int64_t size = int64_t(rows) * (C + 2);
  const float* parts = last - int64_t(item.part) * size;
  for (int r = 0; r < rows; r++) {
    float best = kNothing, total = 0.0f;
    for (int p = 0; p < item.parts; p++) {
      float b = parts[p * size + rows * int64_t(C) + 2 * r];
      best = b > best ? b : best;
    }
    for (int c = 0; c < C; c += 16) store(own.out + c, splat(0.0f));
    for (int p = 0; p < item.parts; p++) {
      const float* numbers = parts + p * size + rows * int64_t(C) + 2 * r;
      float shrink[16];
      store(shrink, exp2_negative(splat(numbers[0] - best)));
      total += numbers[1] * shrink[0];
      for (int c = 0; c < C; c += 16)
        store(own.out + c, fma(load(parts + p * size + int64_t(r) * C + c), splat(shrink[0]), load(own.out + c)));
    }
    write_row(step, item, r, own.out, total);
  }
}

void finish(const AttentionStep& step, const Item& item, const Plan& plan, Scratch& own) {
  const int rows = item.tokens * (step.H / step.K), C = step.C;
  if (item.partial < 0) {
    for (int r = 0; r < rows; r++) write_row(step, item, r, own.out + r * kStride, sum(load(own.sums + 16 * r)));
    return;
  }
  float* part = plan.partials + item.partial;
  for (int r = 0; r < rows; r++) {
    memcpy(part + int64_t(r) * C, own.out + r * kStride, size_t(C) * 4);
    part[rows * int64_t(C) + 2 * r] = own.best[r];
    part[rows * int64_t(C) + 2 * r + 1] = sum(load(own.sums + 16 * r));
  }
  if (__atomic_add_fetch(&plan.done[item.counter], 1, __ATOMIC_ACQ_REL) == item.parts) merge(step, item, part, own);
}

}  // namespace
