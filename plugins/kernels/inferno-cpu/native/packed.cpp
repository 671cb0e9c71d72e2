// Quantized matrices times rows quantized to int8. Compiled once for each instruction set.
#include "packed.hpp"

#include <cstdlib>

#include "packed_repack.hpp"
#include "packed_tile.hpp"
#include "parallel.hpp"
#include "peak.hpp"
#include "problems.hpp"

namespace {

// Rows of x per tile, with packed panels and with unpacked ones; unpacked panels per tile; and the
// most rows for which panels stay packed.
#if defined(INFERNO_EMULATE)  // few of them: emulated instructions take minutes to compile
constexpr int kDirect = 2, kWide = 2, kWidePanels = 2, kDirectRows = 5;
#elif defined(INFERNO_AVX512)
constexpr int kDirect = 8, kWide = 6, kWidePanels = 2, kDirectRows = 16;
#elif defined(INFERNO_AVX2)
constexpr int kDirect = 4, kWide = 4, kWidePanels = 1, kDirectRows = 8;
#elif defined(INFERNO_SVE256)
constexpr int kDirect = 6, kWide = 6, kWidePanels = 1, kDirectRows = 12;
#elif defined(INFERNO_NEON_DOT)
constexpr int kDirect = 4, kWide = 4, kWidePanels = 1, kDirectRows = 8;
#else
constexpr int kDirect = 2, kWide = 2, kWidePanels = 1, kDirectRows = 2;
#endif
constexpr int64_t kChunkBytes = 256 * 1024;  // of panels in one task

using Multiply = void (*)(const uint8_t* w, int64_t stride, const uint8_t* x, int64_t groups,
                          float* y);

struct Kernel {
  int groups, super_bytes;  // of a superblock
  int offset, halves, span;
  bool has_min, signed_codes;
  int wide_bytes, codes_at;  // of an unpacked group
  void (*unpack)(const uint8_t* panel, uint8_t* to, int64_t groups);
  Multiply direct[kDirect], wide_last[kWide];  // by rows - 1; for one panel
  Multiply wide[kWide];                        // for kWidePanels panels
};

template <class L>
constexpr Kernel kernel_of() {
  using U = UnpackedOf<L>;
  Kernel k = {};
  k.groups = L::kGroups, k.super_bytes = L::kSuperBytes;
  k.offset = L::kOffset, k.halves = L::kHalves, k.span = L::kSpan;
  k.has_min = L::kHasMin, k.signed_codes = Dot<L::kBits>::kSigned;
  k.wide_bytes = U::kGroupBytes, k.codes_at = U::kCodesAt;
  k.unpack = unpack<L>;
#define INFERNO_WIDTH(T)                                                                          \
  if constexpr (T <= kDirect) k.direct[T - 1] = multiply<L, 1, (T <= kDirect ? T : 1), (T <= 4)>; \
  if constexpr (T <= kWide) {                                                                     \
    k.wide[T - 1] = multiply<U, kWidePanels, (T <= kWide ? T : 1), false>;                        \
    k.wide_last[T - 1] = multiply<U, 1, (T <= kWide ? T : 1), false>;                             \
  }
  INFERNO_WIDTH(1);
  INFERNO_WIDTH(2);
  INFERNO_WIDTH(3);
  INFERNO_WIDTH(4);
  INFERNO_WIDTH(5);
  INFERNO_WIDTH(6);
  INFERNO_WIDTH(7);
  INFERNO_WIDTH(8);
#undef INFERNO_WIDTH
  return k;
}

constexpr Kernel kKernels[kPackedLayouts] = {
    kernel_of<Q8_0>(),        kernel_of<Q4_0>(),         kernel_of<Q4_1>(),
    kernel_of<Q5_0>(),        kernel_of<Q5_1>(),         kernel_of<Q2_K>(),
    kernel_of<Q3_K>(),        kernel_of<Q4_K>(),         kernel_of<Q5_K>(),
    kernel_of<Q6_K>(),        kernel_of<Int4<32>>(),     kernel_of<Int4<64>>(),
    kernel_of<Int4<128>>(),   kernel_of<Mxfp4>(),        kernel_of<Iq4_nl>(),
    kernel_of<Int8<32>>(),    kernel_of<Int8<64>>(),     kernel_of<Int8<128>>(),
    kernel_of<Int8Sym<64>>(), kernel_of<Int8Sym<128>>(),
};

using Repack = void (*)(const uint8_t*, int64_t, const uint16_t*, const uint16_t*, uint8_t*,
                        int64_t, int64_t, int64_t);
constexpr Repack kRepack[kPackedLayouts] = {
    repack_panel<FromQ8_0>,
    repack_panel<FromQ4_0>,
    repack_panel<FromQ4_1>,
    repack_panel<FromQ5_0>,
    repack_panel<FromQ5_1>,
    repack_panel<FromQ2_K>,
    repack_panel<FromQ3_K>,
    repack_panel<FromQ4_K>,
    repack_panel<FromQ5_K>,
    repack_panel<FromQ6_K>,
    repack_panel<FromInt4<32>>,
    repack_panel<FromInt4<64>>,
    repack_panel<FromInt4<128>>,
    repack_panel<FromMxfp4>,
    repack_panel<FromIq4_nl>,
    repack_panel<FromInt8<32, Int8<32>>>,
    repack_panel<FromInt8<64, Int8<64>>>,
    repack_panel<FromInt8<128, Int8<128>>>,
    repack_panel<FromInt8<64, Int8Sym<64>>>,
    repack_panel<FromInt8<128, Int8Sym<128>>>,
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

int64_t panel_bytes(int layout, int64_t K) {
  return K / (kKernels[layout].groups * kColumns) * kKernels[layout].super_bytes;
}

void repack(int layout, const void* rows, int64_t row_bytes, const void* scales, const void* zeros,
            void* panels, int64_t N, int64_t K) {
  int64_t bytes = panel_bytes(layout, K), count = (N + kRows - 1) / kRows;
  parallel_chunks(count, kChunkBytes / (bytes + 1), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p++)
      kRepack[layout]((const uint8_t*)rows, row_bytes, (const uint16_t*)scales,
                      (const uint16_t*)zeros, (uint8_t*)panels + p * bytes, p, N, K);
  });
}

// ---- x ----

// Quantize row t of a tile of T rows (see Activations). The scale of a span of groups is its
// largest magnitude / 127. Magnitudes below 2^-100 become zero, since their reciprocal may
// overflow; a span with an infinity or NaN gets the scale NaN.
template <class X>
void quantize_row(const Kernel& k, const X* x, int64_t groups, uint8_t* tile, int T, int t) {
  for (int64_t g = 0; g < groups; g += k.span) {
    I32 most = splat(int32_t(0));
    for (int i = 0; i < 2 * k.span; i++) most = max_i32(most, magnitude_bits(load(x + 16 * i)));
    int32_t bits = largest_i32(most), correction = 0;
    float magnitude, scale, inverse;
    memcpy(&magnitude, &bits, 4);
    scale = magnitude / 127.0f;
    inverse = 127.0f / magnitude;
    if (bits >= 0x7f800000) {
      scale = __builtin_nanf("");
      inverse = 0.0f;
    } else if (bits < 0x0d800000) {
      scale = inverse = 0.0f;
    }
    uint8_t* first = tile;
    for (int i = 0; i < k.span; i++, x += kColumns, tile += 44 * T) {
      I32 qa = round_i32(load(x) * splat(inverse)), qb = round_i32(load(x + 16) * splat(inverse));
      if (bits >= 0x7f800000) qa = qb = splat(int32_t(0));
      int32_t sums[2] = {sum_i32(qa), sum_i32(qb)};
      if (k.halves == 1) sums[0] += sums[1];
      uint8_t q[kColumns];
      store_int8(q, qa);
      store_int8(q + 16, qb);
      UNROLL_FOR (int j = 0; j < kFours; j++) memcpy(tile + (j * T + t) * 4, q + 4 * j, 4);
      memcpy(tile + kColumns * T + 4 * t, &scale, 4);
      for (int h = 0; h < 2; h++) {
        uint8_t* to = tile + (kColumns + 4 + 4 * h) * T + 4 * t;
        float scaled = scale * float(sums[h]);
        int32_t own = -k.offset * sums[h];
        if (k.span > 1) correction += h ? 0 : own, own = 0;
        memcpy(to, k.has_min ? (const void*)&scaled : (const void*)&own, 4);
      }
    }
    if (k.span > 1) memcpy(first + (kColumns + 4) * T + 4 * t, &correction, 4);
  }
}

void quantize_tile(const Kernel& k, int dtype, const void* x, int64_t K, uint8_t* tile, int T) {
  with_type(dtype, [&](auto element) {
    for (int t = 0; t < T; t++)
      quantize_row(k, (const decltype(element)*)x + t * K, K / kColumns, tile, T, t);
  });
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
  problem.chunk = chunk < step ? step : chunk;
  if (before) {
    problem.tile = before->tile + before->tiles;
    problem.task = before->task + before->task_count();
  }
  return problem;
}

// Run one task: the panels [first, last) of a problem.
template <class Sink>
void run_task(const Kernel& k, const Problem& problem, int64_t first, int64_t last,
              const uint8_t* xs, int64_t groups, Sink& sink) {
  int64_t bytes = groups / k.groups * k.super_bytes, wide_bytes = groups * k.wide_bytes,
          step = problem.step();
  int64_t x_bytes = groups * Activations<1>::kBytes;
  bool direct = problem.direct();
  float y[(kDirect > kWidePanels * kWide ? kDirect : kWidePanels * kWide) * kRows];
  uint8_t* unpacked = direct ? nullptr : panel_scratch.of(size_t(step * wide_bytes));
  for (int64_t p = first; p < last;) {
    int at_once = last - p >= step ? int(step) : 1;
    if (!direct)
      for (int r = 0; r < at_once; r++)
        k.unpack(problem.panels + (p + r) * bytes, unpacked + r * wide_bytes, groups);
    for (int64_t i = 0; i < problem.tiles; i++) {
      int64_t t0 = problem.begin(i);
      int T = problem.rows(i);
      const uint8_t* x = xs + (problem.token + t0) * x_bytes;
      if (!direct)
        (at_once > 1 || kWidePanels == 1 ? k.wide : k.wide_last)[T - 1](unpacked, wide_bytes, x,
                                                                        groups, y);
      else
        k.direct[T - 1](problem.panels + p * bytes, bytes, x, groups, y);
      for (int r = 0; r < at_once; r++)
        for (int t = 0; t < T; t++) sink.take((p + r) * kRows, t0 + t, y + (r * T + t) * kRows);
    }
    p += at_once;
  }
}

// For each task of each problem: sink = make_sink(problem), then sink.take(n, t, values) for 16
// rows of W from row n on and row t of x, then sink.done().
template <class MakeSink>
void product(const Kernel& k, int dtype, const void* x, int64_t K, const Problem* problems,
             int64_t num_problems, const MakeSink& make_sink) {
  int64_t groups = K / kColumns, x_bytes = groups * Activations<1>::kBytes,
          x_size = dtype == kFloat32 ? 4 : 2;
  const Problem& last = problems[num_problems - 1];
  int64_t M = last.token + last.M, tiles = last.tile + last.tiles;
  uint8_t* xs = x_scratch.of(size_t(M * x_bytes));
  parallel_for(tiles, 1 + 32768 * tiles / (M * K), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const Problem& problem = problem_at(problems, num_problems, &Problem::tile, i);
      int64_t t = problem.token + problem.begin(i - problem.tile);
      quantize_tile(k, dtype, (const uint8_t*)x + t * K * x_size, K, xs + t * x_bytes,
                    problem.rows(i - problem.tile));
    }
  });
  parallel_chunks(last.task + last.task_count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const Problem& problem = problem_at(problems, num_problems, &Problem::task, i);
      int64_t first = (i - problem.task) * problem.chunk, past = first + problem.chunk;
      auto sink = make_sink(problem);
      run_task(k, problem, first, past < problem.count ? past : problem.count, xs, groups, sink);
      sink.done();
    }
  });
}

// Row `skew` of the first panel is the first row of the matrix.
template <class Y>
struct Rows {
  Y* y;
  const Y* bias;
  int64_t N, skew;
  void take(int64_t n, int64_t t, const float* values) const {
    n -= skew;
    Y* to = y + t * N + n;
    if (n >= 0 && n + kRows <= N) {
      store(to, bias ? load(values) + load(bias + n) : load(values));
      return;
    }
    for (int64_t i = n < 0 ? -n : 0; i < kRows && n + i < N; i++)
      from_float(to + i, bias ? values[i] + to_float(bias[n + i]) : values[i]);
  }
  void done() const {}
};

Problem single_problem(const Kernel& k, const void* panels, int64_t M, int64_t N, int64_t K) {
  return problem_of((const uint8_t*)panels, (N + kRows - 1) / kRows,
                    K / (k.groups * kColumns) * k.super_bytes, M, M, nullptr);
}

void matmul(int layout, const void* panels, int x_dtype, const void* x, int y_dtype, void* y,
            const void* bias, int64_t M, int64_t N, int64_t K) {
  if (M < 1) return;
  const Kernel& k = kKernels[layout];
  Problem problem = single_problem(k, panels, M, N, K);
  with_type(y_dtype, [&](auto element) {
    using Y = decltype(element);
    product(k, x_dtype, x, K, &problem, 1,
            [&](const Problem&) { return Rows<Y>{(Y*)y, (const Y*)bias, N, 0}; });
  });
}

void grouped(int layout, const void* panels, int x_dtype, const void* x, int y_dtype, void* y,
             const void* bias, const int32_t* starts, int64_t E, int64_t N, int64_t K) {
  const Kernel& k = kKernels[layout];
  int64_t M = starts[E], bytes = panel_bytes(layout, K), num_problems = 0;
  if (M < 1) return;
  Problem* problems = (Problem*)problem_scratch.of(size_t(E < M ? E : M) * sizeof(Problem));
  for (int64_t e = 0; e < E; e++) {
    if (starts[e] == starts[e + 1]) continue;
    Stacked at(e, N);
    problems[num_problems] = problem_of((const uint8_t*)panels + at.begin * bytes,
                                        at.end - at.begin, bytes, starts[e + 1] - starts[e], M,
                                        num_problems ? problems + num_problems - 1 : nullptr);
    problems[num_problems].matrix = e;
    problems[num_problems++].token = starts[e];
  }
  with_type(y_dtype, [&](auto element) {
    using Y = decltype(element);
    product(k, x_dtype, x, K, problems, num_problems, [&](const Problem& problem) {
      const Y* own = bias ? (const Y*)bias + problem.matrix * N : nullptr;
      return Rows<Y>{(Y*)y + problem.token * N, own, N, Stacked(problem.matrix, N).skew};
    });
  });
}

// ---- argmax ----

constexpr int kArgmaxRows = 64;

struct Best {
  float value[kArgmaxRows];
  int64_t id[kArgmaxRows];
  static void offer(Best* b, int64_t t, float value, int64_t id) {
    // False for NaN, and for the second of two equals.
    bool better = b->id[t] < 0 || value > b->value[t] || (value == b->value[t] && id < b->id[t]);
    if (__builtin_fabsf(value) <= __FLT_MAX__ && better) b->value[t] = value, b->id[t] = id;
  }
};

struct ArgMax {
  Best* all;
  int64_t M, N;
  Best here;
  ArgMax(Best* all, int64_t M, int64_t N) : all(all), M(M), N(N) {
    for (int64_t t = 0; t < M; t++) here.id[t] = -1;
  }
  void take(int64_t n, int64_t t, const float* values) {
    for (int i = 0; i < kRows && n + i < N; i++) Best::offer(&here, t, values[i], n + i);
  }
  void done() const {
#pragma omp critical(inferno_packed_argmax)
    for (int64_t t = 0; t < M; t++)
      if (here.id[t] >= 0) Best::offer(all, t, here.value[t], here.id[t]);
  }
};

void argmax(int layout, const void* panels, int x_dtype, const void* x, int64_t* ids, int64_t M,
            int64_t N, int64_t K) {
  for (int64_t t = 0; t < M; t += kArgmaxRows) {
    int64_t count = M - t < kArgmaxRows ? M - t : kArgmaxRows;
    Best all;
    for (int64_t i = 0; i < count; i++) all.id[i] = -1;
    const uint8_t* from = (const uint8_t*)x + t * K * (x_dtype == kFloat32 ? 4 : 2);
    Problem problem = single_problem(kKernels[layout], panels, count, N, K);
    product(kKernels[layout], x_dtype, from, K, &problem, 1,
            [&](const Problem&) { return ArgMax(&all, count, N); });
    for (int64_t i = 0; i < count; i++) ids[t + i] = all.id[i];
  }
}

// ---- rows of the matrix ----

// Exact but for the last rounding to Y: scale * code has at max_chunk 24 bits.
template <class Y>
void row_of(const Kernel& k, const uint8_t* group, int lane, int64_t groups, Y* y) {
  for (int64_t g = 0; g < groups; g++, group += k.wide_bytes, y += kColumns) {
    float values[kColumns];
    for (int i = 0; i < kColumns; i++) {
      int half = k.halves == 2 ? i / 16 : 0;
      float scale, min;
      memcpy(&scale, group + 4 * (kRows * half + lane), 4);
      memcpy(&min, group + 4 * (kRows * (k.halves + half) + lane), 4);
      uint8_t code = group[k.codes_at + code_at(lane, i)];
      float w = scale * float(k.signed_codes ? int8_t(code) : int(code) - k.offset);
      values[i] = k.has_min ? w - min : w;
    }
    store(y, load(values));
    store(y + 16, load(values + 16));
  }
}

template <class Y>
void rows_to(const Kernel& k, const uint8_t* panels, const int64_t* ids, Y* y, int64_t M, int64_t N,
             int64_t K) {
  int64_t groups = K / kColumns, bytes = groups / k.groups * k.super_bytes;
  parallel_chunks(M, 1 + 32768 / (K * kRows), [&](int64_t begin, int64_t end) {
    uint8_t* unpacked = panel_scratch.of(size_t(groups * k.wide_bytes));
    for (int64_t t = begin; t < end; t++) {
      if (ids[t] < 0 || ids[t] >= N) {
        memset((void*)(y + t * K), 0, size_t(K) * sizeof(Y));
        continue;
      }
      k.unpack(panels + ids[t] / kRows * bytes, unpacked, groups);
      row_of(k, unpacked, int(ids[t] % kRows), groups, y + t * K);
    }
  });
}

void rows(int layout, const void* panels, const int64_t* ids, int y_dtype, void* y, int64_t M,
          int64_t N, int64_t K) {
  with_type(y_dtype, [&](auto element) {
    rows_to(kKernels[layout], (const uint8_t*)panels, ids, (decltype(element)*)y, M, N, K);
  });
}

double peak() {
  using D = Dot<4>;
  alignas(64) uint8_t numbers[kChains * 64];
  for (int i = 0; i < kChains * 64; i++) numbers[i] = i % 2 ? 0xff : 1;
  constexpr bool kOneInstruction = __is_same(D::Acc, I32);
  return 128 * peak_steps<D::Acc, !kOneInstruction>(numbers, [&](D::Acc a, int c) {
           return D::add(a, load_line(numbers + 64 * c), load_four(numbers));
         });
}

}  // namespace

extern const PackedLinear INFERNO_EXPORT(packed);
const PackedLinear INFERNO_EXPORT(packed) = {panel_bytes, repack, matmul, grouped,
                                             argmax,      rows,   peak};
