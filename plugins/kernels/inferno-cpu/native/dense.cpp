// Matrices of float32, bfloat16 and float16. Compiled once for each instruction set.
//
// M tokens, N rows of the weights, K columns.
#include "dense.hpp"

#include <cstdlib>

#include "gemm_float.hpp"
#if defined(INFERNO_AMX)
#include "gemm_amx.hpp"
#endif
#include "parallel.hpp"
#include "peak.hpp"
#include "problems.hpp"
#include "scratch.hpp"
#include "simd.hpp"

namespace {

constexpr int64_t kChunkBytes = 256 << 10;     // of weights in one task
constexpr int64_t kResidentBytes = 256 << 10;  // of activations: half of a small second-level cache
constexpr int64_t kMinTiles = 4;  // of a task, even if their activations exceed kResidentBytes
constexpr int64_t kSlice = 512;   // tokens packed at a time
constexpr int64_t kAhead = 2048;  // bytes prefetched ahead in a panel that is read once

template <class E>
struct Steps;
template <>
struct Steps<float> {
  using Of = ColumnSteps<float>;
};
template <>
struct Steps<f16> {
  using Of = ColumnSteps<f16>;
};
template <>
struct Steps<bf16> {
  using Of = Bf16Steps;
};

template <class S>
INL int64_t steps_of(int64_t K) {
  return (K + S::kColumns - 1) / S::kColumns;
}

// ---- activations ----

// M tokens split into tiles of nearly equal size.
struct Tiles {
  int64_t M, count;
  Tiles(int64_t M, int tokens) : M(M), count((M + tokens - 1) / tokens) {}
  int64_t begin(int64_t i) const { return M / count * i + (i < M % count ? i : M % count); }
  int size(int64_t i) const { return int(M / count + (i < M % count)); }
};

INL void sixteen(const bf16* x, float* to) { store(to, load(x)); }
INL void sixteen(const f16* x, float* to) { store(to, load(x)); }
INL void sixteen(const float* x, float* to) { store(to, load(x)); }
INL void sixteen(const bf16* x, uint32_t* to) { memcpy(to, x, 64); }

INL void single(const bf16* x, int64_t, float* to) { *to = to_float(*x); }
INL void single(const f16* x, int64_t, float* to) { *to = to_float(*x); }
INL void single(const float* x, int64_t, float* to) { *to = *x; }
INL void single(const bf16* x, int64_t left, uint32_t* to) {
  *to = x[0].bits | (left > 1 ? uint32_t(x[1].bits) << 16 : 0);
}

// Pack T rows of x as [K, padded to full steps][T].
template <class S, class A>
void pack(const A* x, int64_t x_stride, int64_t T, int64_t K, typename S::X* to) {
  using X = typename S::X;
  constexpr int64_t kEach = S::kColumns / S::kPerStep;  // columns in one X
  int64_t count = steps_of<S>(K) * S::kPerStep, whole = K / kEach / 16 * 16;
  X sixteens[kTokens][16];
  for (int64_t i = 0; i < whole; i += 16) {
    for (int64_t t = 0; t < T; t++)
      sixteen(x + t * x_stride + i * kEach, T == 1 ? to + i : sixteens[t]);
    if (T > 1)
      for (int64_t j = 0; j < 16; j++)
        for (int64_t t = 0; t < T; t++) to[(i + j) * T + t] = sixteens[t][j];
  }
  for (int64_t i = whole; i < count; i++)
    for (int64_t t = 0; t < T; t++) {
      to[i * T + t] = X(0);
      if (i * kEach < K) single(x + t * x_stride + i * kEach, K - i * kEach, to + i * T + t);
    }
}

#if defined(INFERNO_AMX)
template <>
void pack<Bf16Tiles, bf16>(const bf16* x, int64_t x_stride, int64_t T, int64_t K, bf16* to) {
  pack_rows(x, x_stride, T, K, to);
}
#endif

// ---- results ----

// Row `skew` of the first panel is the first row of the matrix.
template <class A>
struct Store {
  A* y;
  const float* bias;
  int64_t N, skew;
  void operator()(int64_t, int64_t panel, int64_t token, F32 sum) const {
    A* to = y + token * N;
    int64_t n = panel * 16 - skew;
    if (n >= 0 && n + 16 <= N) return store(to + n, bias ? sum + load(bias + n) : sum);
    float lanes[16];
    store(lanes, sum);
    for (int64_t i = n < 0 ? -n : 0; i < 16 && n + i < N; i++)
      from_float(to + n + i, bias ? lanes[i] + bias[n + i] : lanes[i]);
  }
};

struct Best {
  float value;
  int32_t id;
};

template <class A>
struct ArgMax {
  Best* best;  // [tasks][M]
  int64_t M, N;
  void operator()(int64_t task, int64_t panel, int64_t token, F32 sum) const {
    Best& b = best[task * M + token];
    A rounded[16];
    store(rounded, sum);
    if (!(largest(max(load(rounded), splat(-__builtin_inff()))) > b.value) && N - panel * 16 >= 16)
      return;
    for (int64_t i = 0; i < 16 && panel * 16 + i < N; i++)
      if (to_float(rounded[i]) > b.value) b = {to_float(rounded[i]), int32_t(panel * 16 + i)};
  }
};

// ---- the product ----

// The tasks of a product: each multiplies some panels, read once, by tiles of tokens that stay in
// the thread's cache meanwhile. Tasks of the same tokens are consecutive.
struct TaskGrid {
  int64_t panels, tiles;  // of one task
  int64_t across, down;   // number of tasks along panels, along tiles
  TaskGrid(int64_t count, int64_t panel_bytes, int R, int64_t tile_count, int64_t tile_bytes,
           int64_t target) {
    panels = whole(
        kChunkBytes / panel_bytes < count / target ? kChunkBytes / panel_bytes : count / target, R);
    across = (count + panels - 1) / panels;
    tiles = kResidentBytes / tile_bytes < kMinTiles ? kMinTiles : kResidentBytes / tile_bytes;
    down = (tile_count + tiles - 1) / tiles;
    if (down * across < target && tile_count > kMinTiles) down = (target + across - 1) / across;
    tiles = (tile_count + down - 1) / down;
    down = (tile_count + tiles - 1) / tiles;
  }
  static int64_t whole(int64_t n, int64_t R) { return n < R ? R : n / R * R; }
};

template <class S>
struct Product {
  using X = typename S::X;
  const char* w;
  int64_t count, panel_bytes, steps;
  const X* x;
  Tiles tiles;
  int R;

  // Multiply one tile of tokens by R panels from `panel` on. Prefetch the `share`-th of `of` parts
  // of the panels at `ahead`.
  template <class Sink>
  void group(int64_t task, int64_t panel, int64_t i, const char* ahead, int64_t share, int64_t of,
             const Sink& sink) const {
    int T = tiles.size(i), present = int(count - panel < R ? count - panel : R);
    alignas(64) float out[(tokens_of<S> > kTokens ? 64 : 24) * 16];
    const X* tokens = x + tiles.begin(i) * steps * S::kPerStep;
    tile_for<S>(T, tiles.count == 1)(w + panel * panel_bytes, panel_bytes, present, tokens, steps,
                                     ahead + share * (panel_bytes / of), S::kBytes / of, out);
    for (int r = 0; r < present; r++)
      for (int t = 0; t < T; t++)
        sink(task, panel + r, tiles.begin(i) + t, load(out + (r * T + t) * 16));
  }

  template <class Sink>
  void run(const TaskGrid& grid, int64_t at, const Sink& sink) const {
    int64_t begin = at % grid.across * grid.panels,
            end = begin + grid.panels < count ? begin + grid.panels : count;
    int64_t first = at / grid.across * grid.tiles,
            last = first + grid.tiles < tiles.count ? first + grid.tiles : tiles.count;
    int64_t of = last - first;
#if defined(INFERNO_AMX)
    TilesReleased released;
#endif
    for (int64_t g = begin; g < end; g += R)
      for (int64_t i = first; i < last; i++) {
        if (of == 1)
          group(at, g, i, w + g * panel_bytes + kAhead, 0, 1, sink);
        else
          group(at, g, i, w + (g + R < end ? g + R : g) * panel_bytes, i - first, of, sink);
      }
  }
};

// One matrix times some tokens.
template <class S>
struct Problem {
  Product<S> product;
  TaskGrid grid;
  int64_t matrix, token;  // index in the stack; first row of x
  int64_t tile, task;     // first ones, counted through all problems
  int64_t task_count() const { return grid.across * grid.down; }
};

// The problem of M tokens, which will be packed at `packed`, in about `target` tasks.
template <class S>
Problem<S> problem_of(const char* panels, int64_t count, int64_t K, const typename S::X* packed,
                      int64_t M, int64_t target) {
  Tiles tiles(M, tokens_of<S>);
  int64_t steps = steps_of<S>(K),
          tile_bytes = tokens_of<S> * steps * S::kPerStep * int64_t(sizeof(typename S::X));
  int R = tiles.count == 1 ? panels_for(int(M)) : kPanels;
  Product<S> product{panels, count, steps * S::kBytes, steps, packed, tiles, R};
  TaskGrid grid(count, product.panel_bytes, R, tiles.count, tile_bytes, target);
  return {product, grid, 0, 0, 0, 0};
}

int64_t target_tasks() { return 4 * inferno_threads; }  // enough to balance the load

template <class S>
typename S::X* packed_tokens(int64_t M, int64_t K) {
  return (typename S::X*)scratch<0>(size_t(M * steps_of<S>(K) * S::kPerStep) *
                                    sizeof(typename S::X));
}

// Pack the tokens of all `count` problems, then compute the products.
template <class S, class A, class SinkOf>
void multiply(const A* x, int64_t x_stride, int64_t K, const Problem<S>* problems, int64_t count,
              const SinkOf& sink_of) {
  const Problem<S>& last = problems[count - 1];
  int64_t row = steps_of<S>(K) * S::kPerStep, tiles = last.tile + last.product.tiles.count;
  int64_t tokens = last.token + last.product.tiles.M - problems->token;
  parallel_for(tiles, 1 + (int64_t(16) << 10) * tiles / (row * tokens),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; i++) {
                   const Problem<S>& problem = problem_at(problems, count, &Problem<S>::tile, i);
                   int64_t at = problem.product.tiles.begin(i - problem.tile);
                   pack<S>(x + (problem.token + at) * x_stride, x_stride,
                           problem.product.tiles.size(i - problem.tile), K,
                           (typename S::X*)problem.product.x + at * row);
                 }
               });
  parallel_chunks(last.task + last.task_count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at++) {
      const Problem<S>& problem = problem_at(problems, count, &Problem<S>::task, at);
      problem.product.run(problem.grid, at - problem.task, sink_of(problem));
    }
  });
}

template <class S, class A>
void matmul_of(const void* x, int64_t x_stride, const void* panels, const float* bias, void* y,
               int64_t M, int64_t N, int64_t K) {
  for (int64_t m = 0; m < M; m += kSlice) {
    int64_t rows = M - m < kSlice ? M - m : kSlice;
    Problem<S> problem = problem_of<S>((const char*)panels, (N + 15) / 16, K,
                                       packed_tokens<S>(rows, K), rows, target_tasks());
    multiply((const A*)x + m * x_stride, x_stride, K, &problem, 1,
             [&](const Problem<S>&) { return Store<A>{(A*)y + m * N, bias, N, 0}; });
  }
}

// A slice ends between two matrices, or within one that has more tokens than a slice.
template <class S, class A>
void grouped_of(const void* x, int64_t x_stride, const void* panels, const float* bias, void* y,
                const int32_t* starts, int64_t E, int64_t N, int64_t K) {
  int64_t panel_bytes = steps_of<S>(K) * S::kBytes, row = steps_of<S>(K) * S::kPerStep;
  Problem<S>* problems =
      (Problem<S>*)scratch<1>(size_t(E < kSlice ? E : kSlice) * sizeof(Problem<S>));
  for (int64_t e = 0, begin = starts[0]; begin < starts[E];) {
    while (starts[e + 1] <= begin) e++;
    int64_t end = starts[e + 1];
    for (int64_t next = e + 1; next < E && starts[next + 1] - begin <= kSlice; next++)
      end = starts[next + 1];
    if (end - begin > kSlice) end = begin + kSlice;
    int64_t slice = end - begin;
    typename S::X* packed = packed_tokens<S>(slice, K);
    int64_t count = 0;
    for (int64_t token = begin; token < end; e++) {
      int64_t rows = (starts[e + 1] < end ? starts[e + 1] : end) - token;
      if (rows <= 0) continue;
      Stacked at(e, N);
      Problem<S>& problem = problems[count] = problem_of<S>(
          (const char*)panels + at.begin * panel_bytes, at.end - at.begin, K,
          packed + (token - begin) * row, rows, (target_tasks() * rows + slice - 1) / slice);
      problem.matrix = e;
      problem.token = token;
      if (count) {
        const Problem<S>& before = problems[count - 1];
        problem.tile = before.tile + before.product.tiles.count;
        problem.task = before.task + before.task_count();
      }
      token += rows;
      count++;
    }
    multiply((const A*)x, x_stride, K, problems, count, [&](const Problem<S>& problem) {
      return Store<A>{(A*)y + problem.token * N, bias ? bias + problem.matrix * N : nullptr, N,
                      Stacked(problem.matrix, N).skew};
    });
    e = problems[count - 1].matrix;
    begin = end;
  }
}

template <class S, class A>
void argmax_of(const void* x, int64_t x_stride, const void* panels, int64_t* ids, int64_t M,
               int64_t N, int64_t K) {
  for (int64_t m = 0; m < M; m += kSlice) {
    int64_t rows = M - m < kSlice ? M - m : kSlice;
    Problem<S> problem = problem_of<S>((const char*)panels, (N + 15) / 16, K,
                                       packed_tokens<S>(rows, K), rows, target_tasks());
    int64_t tasks = problem.task_count();
    Best* best = (Best*)scratch<1>(size_t(tasks * rows) * sizeof(Best));
    for (int64_t i = 0; i < tasks * rows; i++) best[i] = {-__builtin_inff(), -1};
    multiply((const A*)x + m * x_stride, x_stride, K, &problem, 1,
             [&](const Problem<S>&) { return ArgMax<A>{best, rows, N}; });
    for (int64_t t = 0; t < rows; t++) {
      Best b = {-__builtin_inff(), -1};
      for (int64_t p = 0; p < tasks; p++)
        if (best[p * rows + t].value > b.value) b = best[p * rows + t];
      ids[m + t] = __builtin_isinf(b.value) ? -1 : b.id;
    }
  }
}

// ---- layout ----

// Build a panel of `present` rows, the others zero.
template <class E>
void interleave(const E* rows, int64_t row_stride, int64_t present, int64_t K, E* to) {
  constexpr int64_t C = Steps<E>::Of::kColumns;
  int64_t k = 0;
  if (C * sizeof(E) == 4 && present == 16)
    for (; k + 8 * C <= K; k += 8 * C)
      transpose((const char*)(rows + k), row_stride * sizeof(E), (char*)(to + k * 16));
  for (; k < K; k += C)
    for (int64_t r = 0; r < 16; r++)
      for (int64_t c = 0; c < C; c++)
        to[k * 16 + r * C + c] = r < present && k + c < K ? rows[r * row_stride + k + c] : E{};
  end_of_stores();
}

template <class E>
void repack_of(const void* w, int64_t row_stride, void* panels, int64_t N, int64_t K) {
  using S = typename Steps<E>::Of;
  int64_t steps = steps_of<S>(K), count = (N + 15) / 16;
  parallel_chunks(count, 1 + kChunkBytes / (steps * S::kBytes), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g++) {
      int64_t present = N - g * 16 < 16 ? N - g * 16 : 16;
      interleave((const E*)w + g * 16 * row_stride, row_stride, present, K,
                 (E*)panels + g * steps * 16 * S::kColumns);
    }
  });
}

template <class E, class A>
bool rows_of(const void* panels, const int64_t* ids, void* y, int64_t T, int64_t N, int64_t K) {
  using S = typename Steps<E>::Of;
  for (int64_t t = 0; t < T; t++)
    if (ids[t] < 0 || ids[t] >= N) return false;
  int64_t size = steps_of<S>(K) * 16 * S::kColumns;
  parallel_for(T, 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      const E* from = (const E*)panels + ids[t] / 16 * size + ids[t] % 16 * S::kColumns;
      A* to = (A*)y + t * K;
      for (int64_t k = 0; k < K; k++)
        from_float(to + k, to_float(from[k / S::kColumns * 16 * S::kColumns + k % S::kColumns]));
    }
  });
  return true;
}

// ---- by type ----

#define FOR_TYPE(dtype, Name, ...) \
  switch (dtype) {                 \
    case kFloat32: {               \
      using Name = float;          \
      __VA_ARGS__;                 \
    } break;                       \
    case kBFloat16: {              \
      using Name = bf16;           \
      __VA_ARGS__;                 \
    } break;                       \
    default: {                     \
      using Name = f16;            \
      __VA_ARGS__;                 \
    } break;                       \
  }

void repack(int dtype, const void* w, int64_t row_stride, void* panels, int64_t N, int64_t K) {
  FOR_TYPE(dtype, E, repack_of<E>(w, row_stride, panels, N, K));
}

// Call `call` with this level's own steps for bf16 weights and activations and return true, if it
// has any. `tokens`: of a product, on average.
template <class Call>
bool with_bf16_steps(int w_dtype, int x_dtype, int64_t tokens, int64_t K, const Call& call) {
  (void)tokens, (void)K, (void)call;
  if (w_dtype != kBFloat16 || x_dtype != kBFloat16) return false;
#if defined(INFERNO_AMX)
  if (K % kTileColumns == 0) {
    tokens < kFewestTokens ? call(Bf16InTileOrder{}) : call(Bf16Tiles{});
    return true;
  }
#endif
#if defined(INFERNO_BF16)
  call(Bf16DotSteps{});
  return true;
#else
  return false;
#endif
}

void matmul(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels,
            const float* bias, void* y, int64_t M, int64_t N, int64_t K) {
  auto bf16_product = [&](auto steps) {
    matmul_of<decltype(steps), bf16>(x, x_stride, panels, bias, y, M, N, K);
  };
  if (with_bf16_steps(w_dtype, x_dtype, M, K, bf16_product)) return;
  FOR_TYPE(w_dtype, E,
           FOR_TYPE(x_dtype, A,
                    matmul_of<typename Steps<E>::Of, A>(x, x_stride, panels, bias, y, M, N, K)));
}

void grouped(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels,
             const float* bias, void* y, const int32_t* starts, int64_t E, int64_t N, int64_t K) {
  auto bf16_product = [&](auto steps) {
    grouped_of<decltype(steps), bf16>(x, x_stride, panels, bias, y, starts, E, N, K);
  };
  if (with_bf16_steps(w_dtype, x_dtype, starts[E] / E, K, bf16_product)) return;
  FOR_TYPE(w_dtype, W,
           FOR_TYPE(x_dtype, A,
                    grouped_of<typename Steps<W>::Of, A>(x, x_stride, panels, bias, y, starts, E, N,
                                                         K)));
}

void argmax(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels,
            int64_t* ids, int64_t M, int64_t N, int64_t K) {
  auto bf16_product = [&](auto steps) {
    argmax_of<decltype(steps), bf16>(x, x_stride, panels, ids, M, N, K);
  };
  if (with_bf16_steps(w_dtype, x_dtype, M, K, bf16_product)) return;
  FOR_TYPE(
      w_dtype, E,
      FOR_TYPE(x_dtype, A, argmax_of<typename Steps<E>::Of, A>(x, x_stride, panels, ids, M, N, K)));
}

bool rows(int w_dtype, int y_dtype, const void* panels, const int64_t* ids, void* y, int64_t T,
          int64_t N, int64_t K) {
  FOR_TYPE(w_dtype, E, FOR_TYPE(y_dtype, A, return rows_of<E, A>(panels, ids, y, T, N, K)));
}

float read(const void* data, int64_t bytes) {
  constexpr int64_t kChunk = 256;
  float total = 0;
  parallel_for(bytes / kChunk, 1, [&](int64_t begin, int64_t end) {
    F32 sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    const char* at = (const char*)data;
    for (int64_t i = begin; i < end; i++)
      UNROLL_FOR (int j = 0; j < 4; j++)
        sums[j] = sums[j] + load((const float*)(at + i * kChunk + j * 64));
    float partial = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
#pragma omp atomic
    total += partial;
  });
  return total;
}

double peak(int dtype) {
  float ones[kChains * 16];
  for (float& one : ones) one = 1.0f;
#if defined(INFERNO_AMX)
  if (dtype == kBFloat16) return tile_peak();
#elif defined(INFERNO_BF16)
  if (dtype == kBFloat16)
    return 64 * peak_steps<F32, false>(ones, [&](F32 sum, int c) {
             return dot2(sum, load_pairs((const bf16*)(ones + 16 * c)), splat_pair(0x3f80));
           });
#endif
  (void)dtype;
  return 32 * peak_steps<F32, false>(
                  ones, [&](F32 sum, int c) { return fma(load(ones + 16 * c), splat(1.0f), sum); });
}

}  // namespace

extern const DenseLinear INFERNO_EXPORT(dense);
const DenseLinear INFERNO_EXPORT(dense) = {repack, matmul, grouped, argmax, rows, read, peak};
