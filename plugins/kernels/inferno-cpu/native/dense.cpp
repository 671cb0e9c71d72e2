// Matrices of float32, bfloat16, float16 and float8. Compiled once for each instruction set.
//
// M tokens, N rows of the weights, K columns.
#include "dense.hpp"

#include <cstdlib>

#include "dense_product.hpp"
#include "peak.hpp"

namespace {

template <class S, class A, class Y>
void matmul_of(int w_dtype, const void* x, int64_t x_stride, const void* panels, const float* bias,
               void* y, int64_t M, int64_t N, int64_t K) {
  for (int64_t m = 0; m < M; m += kSlice) {
    int64_t rows = M - m < kSlice ? M - m : kSlice;
    Problem<S> problem = problem_of<S>(w_dtype, (const char*)panels, (N + 15) / 16, K,
                                       packed_tokens<S>(rows, K), rows, target_tasks());
    multiply((const A*)x + m * x_stride, x_stride, K, &problem, 1,
             [&](const Problem<S>&) { return Store<Y>{(Y*)y + m * N, bias, N, 0}; });
  }
}

// A slice ends between two matrices, or within one that has more tokens than a slice.
template <class S, class A>
void grouped_of(int w_dtype, const void* x, int64_t x_stride, const void* panels, const float* bias,
                void* y, const int32_t* starts, int64_t E, int64_t N, int64_t K) {
  int64_t panel_bytes = panel_bytes_of<S>(w_dtype, K), row = steps_of<S>(K) * S::kPerStep;
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
          w_dtype, (const char*)panels + at.begin * panel_bytes, at.end - at.begin, K,
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
void argmax_of(int w_dtype, const void* x, int64_t x_stride, const void* panels, int64_t* ids,
               int64_t M, int64_t N, int64_t K) {
  for (int64_t m = 0; m < M; m += kSlice) {
    int64_t rows = M - m < kSlice ? M - m : kSlice;
    Problem<S> problem = problem_of<S>(w_dtype, (const char*)panels, (N + 15) / 16, K,
                                       packed_tokens<S>(rows, K), rows, target_tasks());
    int64_t tasks = problem.task_count();
    Best* best = (Best*)scratch<1>(size_t(tasks * rows) * sizeof(Best));
    for (int64_t i = 0; i < tasks * rows; i++) best[i] = {-__builtin_inff(), -1};
    multiply((const A*)x + m * x_stride, x_stride, K, &problem, 1,
             [&](const Problem<S>&) { return ArgMax{best, rows, N}; });
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

// Codes are decoded to float32.
#define FOR_TYPE(dtype, Name, ...) \
  switch (dtype) {                 \
    case kFloat16: {               \
      using Name = f16;            \
      __VA_ARGS__;                 \
    } break;                       \
    case kBFloat16: {              \
      using Name = bf16;           \
      __VA_ARGS__;                 \
    } break;                       \
    default: {                     \
      using Name = float;          \
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
  if (x_dtype != kBFloat16 || (w_dtype != kBFloat16 && !is_codes(w_dtype))) return false;
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
            const float* bias, int y_dtype, void* y, int64_t M, int64_t N, int64_t K) {
  auto product = [&](auto steps, auto element) {
    using S = decltype(steps);
    using A = decltype(element);
    if (y_dtype == kFloat32)
      matmul_of<S, A, float>(w_dtype, x, x_stride, panels, bias, y, M, N, K);
    else
      matmul_of<S, A, A>(w_dtype, x, x_stride, panels, bias, y, M, N, K);
  };
  if (with_bf16_steps(w_dtype, x_dtype, M, K, [&](auto steps) { product(steps, bf16{}); })) return;
  FOR_TYPE(w_dtype, E, FOR_TYPE(x_dtype, A, product(typename Steps<E>::Of{}, A{})));
}

void grouped(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels,
             const float* bias, void* y, const int32_t* starts, int64_t E, int64_t N, int64_t K) {
  auto bf16_product = [&](auto steps) {
    grouped_of<decltype(steps), bf16>(w_dtype, x, x_stride, panels, bias, y, starts, E, N, K);
  };
  if (with_bf16_steps(w_dtype, x_dtype, starts[E] / E, K, bf16_product)) return;
  FOR_TYPE(w_dtype, W,
           FOR_TYPE(x_dtype, A,
                    grouped_of<typename Steps<W>::Of, A>(w_dtype, x, x_stride, panels, bias, y,
                                                         starts, E, N, K)));
}

void argmax(int w_dtype, int x_dtype, const void* x, int64_t x_stride, const void* panels,
            int64_t* ids, int64_t M, int64_t N, int64_t K) {
  auto bf16_product = [&](auto steps) {
    argmax_of<decltype(steps), bf16>(w_dtype, x, x_stride, panels, ids, M, N, K);
  };
  if (with_bf16_steps(w_dtype, x_dtype, M, K, bf16_product)) return;
  FOR_TYPE(
      w_dtype, E,
      FOR_TYPE(x_dtype, A,
               argmax_of<typename Steps<E>::Of, A>(w_dtype, x, x_stride, panels, ids, M, N, K)));
}

bool repack_fp8(int w_dtype, const void* w, int64_t row_stride, const float* scales, void* panels,
                int64_t N, int64_t K) {
  CodePanel about(w_dtype, K);
  int64_t count = (N + 15) / 16;
  bool good = true;
  parallel_chunks(count, 1 + kChunkBytes / about.bytes, [&](int64_t begin, int64_t end) {
    bool numbers = true;
    for (int64_t g = begin; g < end; g++)
      numbers &= repack_codes((const uint8_t*)w + g * 16 * row_stride, row_stride,
                              scales + g * about.scales, N - g * 16 < 16 ? N - g * 16 : 16, about,
                              K, (char*)panels + g * about.bytes);
#pragma omp critical(inferno_dense_repack)
    good &= numbers;
  });
  return good;
}

void repack_table(int w_dtype, const void* w, int64_t row_stride, const float* scales, void* panels,
                  int64_t N, int64_t K) {
  CodePanel about(w_dtype, K);
  int64_t count = (N + 15) / 16;
  parallel_chunks(count, 1 + kChunkBytes / about.bytes, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g++)
      repack_nibbles(table_of(w_dtype), (const uint8_t*)w + g * 16 * row_stride, row_stride,
                     scales + g * about.scales, N - g * 16 < 16 ? N - g * 16 : 16, about,
                     (char*)panels + g * about.bytes);
  });
}

bool rows(int w_dtype, int y_dtype, const void* panels, const int64_t* ids, void* y, int64_t T,
          int64_t N, int64_t K) {
  if (is_codes(w_dtype)) {
    CodePanel about(w_dtype, K);
    for (int64_t t = 0; t < T; t++)
      if (ids[t] < 0 || ids[t] >= N) return false;
    with_type(y_dtype, [&](auto element) {
      parallel_for(T, 4, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++)
          row_of_codes(w_dtype, (const char*)panels + ids[t] / 16 * about.bytes, about, ids[t] % 16,
                       K, (decltype(element)*)y + t * K);
      });
    });
    return true;
  }
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
const DenseLinear INFERNO_EXPORT(dense) = {
    repack, repack_fp8, repack_table, matmul, grouped, argmax, rows, read, peak};
