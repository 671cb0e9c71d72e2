// Packed products with any number of rows of x: how these are quantized, which thread multiplies
// what. packed_tile.hpp and packed_amx.hpp multiply the tiles.
#pragma once
#include <cstdlib>

#include "packed_tile.hpp"
#include "parallel.hpp"
#include "problems.hpp"
#include "upcoming.hpp"
#if defined(INFERNO_AMX)
#include "simd/amx.hpp"
#endif

namespace {

// Rows of x per tile, with packed panels and with unpacked ones; unpacked panels per tile; and the
// most rows for which panels stay packed.
#if defined(INFERNO_AMX) && !defined(INFERNO_EMULATE)
constexpr int kDirect = 8, kWide = 16, kWidePanels = 2, kDirectRows = 16;
#elif defined(INFERNO_AMX)
constexpr int kDirect = 2, kWide = 16, kWidePanels = 2, kDirectRows = 5;
#elif defined(INFERNO_EMULATE)  // few of them: emulated instructions take minutes to compile
constexpr int kDirect = 2, kWide = 2, kWidePanels = 2, kDirectRows = 5;
#elif defined(INFERNO_AVX512)
constexpr int kDirect = 8, kWide = 6, kWidePanels = 2, kDirectRows = 32;
#elif defined(INFERNO_AVX2)
constexpr int kDirect = 4, kWide = 4, kWidePanels = 1, kDirectRows = 16;
#elif defined(INFERNO_SVE256)
constexpr int kDirect = 6, kWide = 6, kWidePanels = 1, kDirectRows = 12;
#elif defined(INFERNO_NEON_DOT)
constexpr int kDirect = 4, kWide = 4, kWidePanels = 1, kDirectRows = 8;
#else
constexpr int kDirect = 2, kWide = 2, kWidePanels = 1, kDirectRows = 2;
#endif
#if defined(INFERNO_AMX)
constexpr bool kWideIsTiles = true;  // of AMX: packed_amx.hpp
#else
constexpr bool kWideIsTiles = false;
#endif
constexpr int64_t kChunkBytes = 256 * 1024;  // of panels in one task
// Of rows of x that are multiplied by all panels of a task before the next ones: half of the
// second-level cache of processors with AMX. Others compute too slowly for it to matter.
constexpr int64_t kResidentBytes = kWideIsTiles ? 1 << 20 : int64_t(1) << 62;

using Multiply = void (*)(const uint8_t* w, int64_t stride, const uint8_t* x, int64_t groups,
                          const Ahead& ahead, float* y);
using AddOutliers = void (*)(const uint8_t* panel, int64_t bytes, int at_once,
                             const uint8_t* outliers, int T, float* y);

struct Kernel {
  int head, groups, super_bytes;  // of a panel; of a superblock
  int offset, halves, span, shared;
  bool has_min, signed_codes;
  int wide_head, wide_bytes, codes_at;  // of an unpacked panel; of a group of it
  int64_t panel_bytes(int64_t count) const { return head + count / groups * super_bytes; }
  int64_t unpacked_bytes(int64_t count) const { return wide_head + count * wide_bytes; }
  // Of a quantized row of x.
  int64_t row_bytes(int64_t count) const {
    return count * Activations<1>::kBytes + (add_outliers ? int64_t(sizeof(Outlier)) : 0);
  }
  void (*unpack)(const uint8_t* panel, uint8_t* to, int64_t groups);
  Multiply direct[kDirect], wide_last[kWide];  // by rows - 1; for one panel
  Multiply wide[kWide];                        // for kWidePanels panels
  AddOutliers add_outliers;                    // null: x has none
};

// Memory of a thread: grows, and is kept.
struct Scratch {
  uint8_t* memory = nullptr;
  size_t size = 0;
  ~Scratch() { free(memory); }
  uint8_t* of(size_t n) {
    if (n > size) {
      free(memory);
      size = (n + 4095) / 4096 * 4096;
      memory = (uint8_t*)aligned_alloc(64, size);
      if (!memory) abort();
    }
    return memory;
  }
};
thread_local Scratch x_scratch, panel_scratch, problem_scratch;

// ---- x ----

// How numbers up to a magnitude, given by its bits, are rounded to -127 .. 127. Magnitudes below
// 2^-100 become zero, since their reciprocal may overflow; of what is not finite the scale is NaN.
struct Step {
  float scale, inverse;
  explicit Step(int32_t bits) {
    float magnitude;
    memcpy(&magnitude, &bits, 4);
    bool finite = bits < kInfinity, tiny = bits < 0x0d800000;
    scale = !finite ? __builtin_nanf("") : tiny ? 0.0f : magnitude / 127.0f;
    inverse = !finite || tiny ? 0.0f : 127.0f / magnitude;
  }
  static constexpr int32_t kInfinity = 0x7f800000;
};

template <class X>
INL int32_t largest_bits(const X* x, int64_t groups) {
  I32 most = splat(int32_t(0));
  for (int64_t i = 0; i < 2 * groups; i++) most = max_i32(most, magnitude_bits(load(x + 16 * i)));
  return largest_i32(most);
}

// Quantize `span` groups of row t of a tile of T rows (see Activations; `by_rows`: for AMX) with
// one scale, their largest magnitude / 127.
template <class X>
INL void quantize_span(const Kernel& k, const X* x, int64_t span, uint8_t* tile, int T, int t,
                       bool by_rows) {
  int32_t bits = largest_bits(x, span), total = 0;
  const Step step(bits);
  uint8_t* first = tile;
  for (int64_t i = 0; i < span; i++, x += kColumns, tile += 44 * T) {
    I32 qa = round_i32(load(x) * splat(step.inverse)),
        qb = round_i32(load(x + 16) * splat(step.inverse));
    if (bits >= Step::kInfinity) qa = qb = splat(int32_t(0));
    int32_t sums[2] = {0, 0};
    if (k.halves == 1)
      sums[0] = sum_i32(add(qa, qb));
    else
      sums[0] = sum_i32(qa), sums[1] = sum_i32(qb);
    uint8_t q[kColumns];
    store_int8(q, qa);
    store_int8(q + 16, qb);
    if (by_rows)
      memcpy(tile + kColumns * t, q, kColumns);
    else
      UNROLL_FOR (int j = 0; j < kFours; j++) memcpy(tile + (j * T + t) * 4, q + 4 * j, 4);
    memcpy(tile + kColumns * T + 4 * t, &step.scale, 4);
    for (int h = 0; h < 2; h++) {
      uint8_t* to = tile + (kColumns + 4 + 4 * h) * T + 4 * t;
      float scaled = step.scale * float(sums[h]);
      int32_t own = k.span == 1 ? -k.offset * sums[h] : 0;
      memcpy(to, k.has_min && k.span == 1 ? (const void*)&scaled : (const void*)&own, 4);
    }
    total += sums[0];
  }
  if (k.span == 1) return;
  int32_t correction = -k.offset * total;
  float sum = float(total);
  uint8_t* to = first + (kColumns + 4) * T + 4 * t;
  memcpy(to, &correction, 4);
  memcpy(to + 4 * T, &sum, 4);
}

// Squares of scales add up to what rounding loses of a row. If at least this share of it is gone
// without one element, that element is an outlier. Few rows have one if their values are normally
// distributed, most of a trained model have.
constexpr double kOutlierShare = 0.375;

// Quantize the group of row t with the largest scale anew, without its largest element, if that is
// an outlier.
template <class X>
void take_outlier(const Kernel& k, const X* x, int64_t groups, uint8_t* tile, int T, int t,
                  bool by_rows) {
  const uint8_t* scales = tile + kColumns * T + 4 * t;
  int64_t largest = 0;
  double most = 0.0, total = 0.0;
  for (int64_t g = 0; g < groups; g++) {
    double scale = at_byte<float>(scales + 44 * T * g);
    if (scale > most) most = scale, largest = g;
    total += scale * scale;
  }
  Outlier outlier = {0.0f, 0};
  if (most * most > kOutlierShare * total) {  // false if x is not finite
    float group[kColumns];
    for (int i = 0; i < kColumns; i += 16) store(group + i, load(x + kColumns * largest + i));
    int32_t bits = largest_bits(group, 1);
    int place = 0;
    while ((at_byte<int32_t>((const uint8_t*)(group + place)) & 0x7fffffff) != bits) place++;
    float value = group[place];
    group[place] = 0.0f;
    double next = Step(largest_bits(group, 1)).scale;
    if (most * most - next * next > kOutlierShare * total) {
      outlier = {value, uint32_t(kColumns * largest + place)};
      quantize_span(k, group, 1, tile + 44 * T * largest, T, t, by_rows);
    }
  }
  memcpy(tile + 44 * T * groups + sizeof outlier * size_t(t), &outlier, sizeof outlier);
}

// Quantize row t of a tile of T rows.
template <class X>
void quantize_row(const Kernel& k, const X* x, int64_t groups, uint8_t* tile, int T, int t,
                  bool by_rows) {
  if (k.span == 0) return quantize_span(k, x, groups, tile, T, t, by_rows);
  for (int64_t g = 0; g < groups; g++)
    quantize_span(k, x + kColumns * g, 1, tile + 44 * T * g, T, t, by_rows);
  take_outlier(k, x, groups, tile, T, t, by_rows);
  if (k.shared == 1 || !k.has_min) return;
  uint8_t* to = tile + (kColumns + 4) * T + 4 * t;
  for (int64_t g = 0; g < groups; g += k.shared, to += 44 * T * k.shared) {
    float sum = 0.0f, one;
    for (int i = 0; i < k.shared; i++) memcpy(&one, to + 44 * T * i, 4), sum += one;
    memcpy(to, &sum, 4);
  }
}

// Mark in a tile's first outlier whether any of its rows has one, because each panel asks.
void mark_outliers(uint8_t* outliers, int T) {
  Outlier first = at_byte<Outlier>(outliers);
  if (first.value != 0.0f) return;
  for (int t = 1; t < T; t++)
    if (at_byte<Outlier>(outliers + sizeof first * size_t(t)).value != 0.0f) first.column = 1;
  memcpy(outliers, &first, sizeof first);
}

INL bool any_outlier(const uint8_t* outliers) {
  const Outlier first = at_byte<Outlier>(outliers);
  return first.value != 0.0f || first.column != 0;
}

void quantize_tile(const Kernel& k, int dtype, const void* x, int64_t K, uint8_t* tile, int T,
                   bool by_rows) {
  with_type(dtype, [&](auto element) {
    for (int t = 0; t < T; t++)
      quantize_row(k, (const decltype(element)*)x + t * K, K / kColumns, tile, T, t, by_rows);
  });
  if (k.add_outliers) mark_outliers(tile + K / kColumns * Activations<1>::kBytes * T, T);
}

// ---- the product ----

// One matrix times some rows of x.
struct Problem {
  const uint8_t* panels;
  int64_t count, matrix;  // panels; index in the stack
  int64_t token, M;       // first row of x, rows
  int64_t tiles, chunk;   // tiles of rows of x; panels of a task
  int64_t tile, task;     // first ones, counted through all problems
  bool direct() const { return M <= kDirectRows; }
  int64_t step() const { return direct() ? 1 : kWidePanels; }  // panels multiplied at once
  int64_t steps() const { return (count + step() - 1) / step(); }
  int64_t task_count() const { return (count + chunk - 1) / chunk; }
  int64_t begin(int64_t i) const { return M * i / tiles; }  // first row of a tile
  int rows(int64_t i) const { return int(begin(i + 1) - begin(i)); }
};

// The problem after `before`, or the first of a product of `all` rows of x.
Problem problem_of(const uint8_t* panels, int64_t count, int64_t panel_bytes, int64_t M,
                   int64_t all, const Problem* before) {
  Problem problem = {panels, count, 0, 0, M, 0, 0, 0, 0};
  int64_t width = problem.direct() ? kDirect : kWide, step = problem.step();
  problem.tiles = (M + width - 1) / width;
  int64_t chunk = kChunkBytes / panel_bytes,
          max_chunk = count * all / (4 * inferno_threads * M);  // enough tasks to balance the load
  chunk = (chunk < max_chunk ? chunk : max_chunk) / step * step;
  chunk = chunk < step ? step : chunk;
  problem.chunk = M == all ? even_chunk(count, chunk, step) : chunk;
  if (before) {
    problem.tile = before->tile + before->tiles;
    problem.task = before->task + before->task_count();
  }
  return problem;
}

// Run a part of a task: the panels [first, last) of a problem times the tiles [begin, end) of x.
template <class Sink>
void run_tiles(const Kernel& k, const Problem& problem, int64_t first, int64_t last, int64_t begin,
               int64_t end, const uint8_t* xs, int64_t groups, const Upcoming* later, Sink& sink) {
  int64_t bytes = k.panel_bytes(groups), wide_bytes = k.unpacked_bytes(groups),
          step = problem.step();
  int64_t x_bytes = k.row_bytes(groups);
  bool direct = problem.direct();
  float y[(kDirect > kWidePanels * kWide ? kDirect : kWidePanels * kWide) * kRows];
  uint8_t* unpacked = direct ? nullptr : panel_scratch.of(size_t(step * wide_bytes));
  // Packed panels that are read once are prefetched a little ahead. During several tiles, each
  // prefetches its share of the next panels: memory is read while the processor multiplies. Threads
  // take tasks in turns, so a later task's panels follow the last ones.
  int64_t next_task = first + inferno_threads * problem.chunk;
  auto ahead = [&](int64_t p, int64_t i) -> Ahead {
    const uint8_t* panel = problem.panels + p * bytes;
    if (direct && problem.tiles == 1)  // of more than 4 rows, their whole group at once is better
      return {panel, panel + (problem.M <= 4 ? kAhead : 0), 1 << 16, bytes};
    int64_t next = p + step < last ? p + step : next_task < problem.count ? next_task : p;
    int64_t share = bytes / (end - begin), read = direct ? bytes : wide_bytes;
    return {direct ? panel : unpacked, problem.panels + next * bytes + share * (i - begin),
            (share << 16) / read, next + step <= problem.count ? bytes : 0};
  };
  for (int64_t p = first; p < last;) {
    int at_once = last - p >= step ? int(step) : 1;
    if (!direct)
      for (int r = 0; r < at_once; r++)
        k.unpack(problem.panels + (p + r) * bytes, unpacked + r * wide_bytes, groups);
    for (int64_t i = begin; i < end; i++) {
      int64_t t0 = problem.begin(i);
      int T = problem.rows(i);
      const uint8_t* x = xs + (problem.token + t0) * x_bytes;
      if (kWideIsTiles && !direct)
        for (int t = 0; t < T; t++) sink.ahead(p * kRows, t0 + t);
      if (!direct)
        (at_once > 1 || kWidePanels == 1 ? k.wide : k.wide_last)[T - 1](unpacked, wide_bytes, x,
                                                                        groups, ahead(p, i), y);
      else
        k.direct[T - 1](problem.panels + p * bytes, bytes, x, groups, ahead(p, i), y);
      const uint8_t* outliers = x + groups * Activations<1>::kBytes * T;
      if (k.add_outliers && any_outlier(outliers))
        k.add_outliers(problem.panels + p * bytes, bytes, at_once, outliers, T, y);
      for (int t = 0; t < T; t++)  // both panels of a row at once: in bfloat16 they are one line
        for (int r = 0; r < at_once; r++)
          sink.take((p + r) * kRows, t0 + t, y + (r * T + t) * kRows);
      if (later) fetch(*later, p / step * problem.tiles + i, problem.steps() * problem.tiles);
    }
    p += at_once;
  }
}

// Run one task: the panels [first, last) of a problem.
template <class Sink>
void run_task(const Kernel& k, const Problem& problem, int64_t first, int64_t last,
              const uint8_t* xs, int64_t groups, const Upcoming* later, Sink& sink) {
  int64_t fits = kResidentBytes / (kWide * k.row_bytes(groups)) + 1, tiles = problem.tiles;
  int64_t parts = (tiles + fits - 1) / fits;
  for (int64_t i = 0; i < parts; i++)
    run_tiles(k, problem, first, last, tiles * i / parts, tiles * (i + 1) / parts, xs, groups,
              later, sink);
}

// For each task of each problem: sink = make_sink(problem), then sink.take(n, t, values) for 16
// rows of W from row n on and row t of x, then sink.done().
template <class MakeSink>
void product(const Kernel& k, int dtype, const void* x, int64_t K, const Problem* problems,
             int64_t num_problems, const MakeSink& make_sink) {
  int64_t groups = K / kColumns, x_bytes = k.row_bytes(groups),
          x_size = dtype == kFloat32 ? 4 : 2;
  const Problem& last = problems[num_problems - 1];
  int64_t M = last.token + last.M, tiles = last.tile + last.tiles;
  uint8_t* xs = x_scratch.of(size_t(M * x_bytes));
  parallel_for(tiles, 1 + light_grain() * tiles / (M * K), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const Problem& problem = problem_at(problems, num_problems, &Problem::tile, i);
      int64_t t = problem.token + problem.begin(i - problem.tile);
      quantize_tile(k, dtype, (const uint8_t*)x + t * K * x_size, K, xs + t * x_bytes,
                    problem.rows(i - problem.tile), kWideIsTiles && !problem.direct());
    }
  });
  const Upcoming* later = num_problems == 1 && M > 1 ? upcoming : nullptr;
  parallel_chunks(last.task + last.task_count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
#if defined(INFERNO_AMX)
      TilesReleased released;
#endif
      const Problem& problem = problem_at(problems, num_problems, &Problem::task, i);
      int64_t first = (i - problem.task) * problem.chunk, past = first + problem.chunk;
      auto sink = make_sink(problem);
      run_task(k, problem, first, past < problem.count ? past : problem.count, xs, groups, later,
               sink);
      sink.done();
    }
  });
}

}  // namespace
