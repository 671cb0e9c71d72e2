// Quantized matrices times rows quantized to int8. Compiled once for each instruction set.
#include "packed.hpp"

#include "packed_product.hpp"
#include "packed_repack.hpp"
#include "peak.hpp"
#if defined(INFERNO_AMX)
#include "packed_amx.hpp"
#endif

namespace {

template <class L>
constexpr Kernel kernel_of() {
  using U = UnpackedOf<L>;
  Kernel k = {};
  k.head = L::kHead, k.groups = L::kGroups, k.super_bytes = L::kSuperBytes;
  k.offset = L::kOffset, k.halves = L::kHalves, k.span = L::kSpan, k.shared = L::kShared;
  k.has_min = L::kHasMin, k.signed_codes = Dot<L::kBits>::kSigned || (kWideIsTiles && L::kOffset);
  k.wide_head = U::kHead, k.wide_bytes = U::kGroupBytes, k.codes_at = U::kCodesAt;
  k.unpack = unpack<L>;
  if constexpr (L::kSpan == 1) k.add_outliers = add_outliers<L>;
#if defined(INFERNO_AMX)
  tile_kernels<U>(k);
#endif
#define INFERNO_WIDTH(T)                                                                \
  if constexpr (T <= kDirect) k.direct[T - 1] = multiply<L, 1, (T <= kDirect ? T : 1)>; \
  if constexpr (T <= kWide && !kWideIsTiles) {                                          \
    k.wide[T - 1] = multiply<U, kWidePanels, (T <= kWide ? T : 1)>;                     \
    k.wide_last[T - 1] = multiply<U, 1, (T <= kWide ? T : 1)>;                          \
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
    kernel_of<Q8_0>(),         kernel_of<Q4_0>(),         kernel_of<Q4_1>(),
    kernel_of<Q5_0>(),         kernel_of<Q5_1>(),         kernel_of<Q2_K>(),
    kernel_of<Q3_K>(),         kernel_of<Q4_K>(),         kernel_of<Q5_K>(),
    kernel_of<Q6_K>(),         kernel_of<Int4<32>>(),     kernel_of<Int4<64>>(),
    kernel_of<Int4<128>>(),    kernel_of<Mxfp4>(),        kernel_of<Iq4_nl>(),
    kernel_of<Int8<32>>(),     kernel_of<Int8<64>>(),     kernel_of<Int8<128>>(),
    kernel_of<Int8Sym<64>>(),  kernel_of<Int8Sym<128>>(), kernel_of<Rows8<true>>(),
    kernel_of<Rows8<false>>(),
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
    repack_rows<true>,
    repack_rows<false>,
};

int64_t panel_bytes(int layout, int64_t K) { return kKernels[layout].panel_bytes(K / kColumns); }

void repack(int layout, const void* rows, int64_t row_bytes, const void* scales, const void* zeros,
            void* panels, int64_t N, int64_t K) {
  int64_t bytes = panel_bytes(layout, K), count = (N + kRows - 1) / kRows;
  parallel_chunks(count, kChunkBytes / (bytes + 1), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p++)
      kRepack[layout]((const uint8_t*)rows, row_bytes, (const uint16_t*)scales,
                      (const uint16_t*)zeros, (uint8_t*)panels + p * bytes, p, N, K);
  });
}

// ---- results ----

// Row `skew` of the first panel is the first row of the matrix.
template <class Y>
struct Rows {
  Y* y;
  const Y* bias;
  int64_t N, skew;
  // Fetch where the values of two panels will be written.
  void ahead(int64_t n, int64_t t) const { __builtin_prefetch(y + t * N + n - skew, 1); }
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
  return problem_of((const uint8_t*)panels, (N + kRows - 1) / kRows, k.panel_bytes(K / kColumns), M,
                    M, nullptr);
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
  void ahead(int64_t, int64_t) const {}
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

// Exact but for the last rounding to Y: scale * code has at most 24 bits, but for scales in
// float32.
template <class Y>
void row_of(const Kernel& k, const uint8_t* panel, int lane, int64_t groups, Y* y) {
  const uint8_t* group = panel + k.wide_head;
  for (int64_t g = 0; g < groups; g++, group += k.wide_bytes, y += kColumns) {
    const uint8_t* scales = k.span ? group : panel;
    float values[kColumns];
    for (int i = 0; i < kColumns; i++) {
      int half = k.halves == 2 ? i / 16 : 0;
      float scale, min;
      memcpy(&scale, scales + 4 * (kRows * half + lane), 4);
      memcpy(&min, scales + 4 * (kRows * (k.halves + half) + lane), 4);
      uint8_t code = group[k.codes_at + code_at(lane, i)];
      float w = float(k.signed_codes ? int8_t(code) : int(code) - k.offset);
      if (k.has_min && !k.span) w -= min;
      w *= scale;
      values[i] = k.has_min && k.span ? w - min : w;
    }
    store(y, load(values));
    store(y + 16, load(values + 16));
  }
}

template <class Y>
void rows_to(const Kernel& k, const uint8_t* panels, const int64_t* ids, Y* y, int64_t M, int64_t N,
             int64_t K) {
  int64_t groups = K / kColumns, bytes = k.panel_bytes(groups);
  parallel_chunks(M, 1 + 32768 / (K * kRows), [&](int64_t begin, int64_t end) {
    uint8_t* unpacked = panel_scratch.of(size_t(k.unpacked_bytes(groups)));
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
#if defined(INFERNO_AMX)
  return packed_tile_peak();
#else
  using D = Dot<4>;
  alignas(64) uint8_t numbers[kChains * 64];
  for (int i = 0; i < kChains * 64; i++) numbers[i] = i % 2 ? 0xff : 1;
  constexpr bool kOneInstruction = __is_same(D::Acc, I32);
  return 128 * peak_steps<D::Acc, !kOneInstruction>(numbers, [&](D::Acc a, int c) {
           return D::add(a, load_line(numbers + 64 * c), load_four(numbers));
         });
#endif
}

}  // namespace

extern const PackedLinear INFERNO_EXPORT(packed);
const PackedLinear INFERNO_EXPORT(packed) = {panel_bytes, repack, matmul, grouped,
                                             argmax,      rows,   peak};
