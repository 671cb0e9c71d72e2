// Quantized matrices times rows quantized to int8. Compiled once for each instruction set.
#include "packed.hpp"

#include <cstdlib>

#include "packed_repack.hpp"
#include "packed_tile.hpp"
#include "parallel.hpp"

namespace {

// Rows of x that go together: through packed panels, and through unpacked ones; from how many on panels are unpacked first; and
// how many panels are read side by side.
#if defined(INFERNO_EMULATE)  // few of them: emulated instructions take minutes to compile
constexpr int kDirect = 2, kWide = 2, kWidePanels = 2, kDirectRows = 5, kStreams = 2;
#elif defined(INFERNO_AVX512)
constexpr int kDirect = 8, kWide = 6, kWidePanels = 2, kDirectRows = 16, kStreams = 2;
#elif defined(__AVX2__)
constexpr int kDirect = 4, kWide = 4, kWidePanels = 1, kDirectRows = 8, kStreams = 1;
#else
constexpr int kDirect = 2, kWide = 2, kWidePanels = 1, kDirectRows = 2, kStreams = 1;
#endif
constexpr int64_t kChunkBytes = 256 * 1024;  // of panels, to one thread at a time

using Multiply = void (*)(const uint8_t* w, int64_t stride, const uint8_t* x, int64_t groups, float* y);

struct Kernel {
  int groups, super_bytes;  // of a superblock
  int offset, halves;
  bool has_min, signed_codes;
  int wide_bytes, codes_at;  // of an unpacked group
  void (*unpack)(const uint8_t* panel, uint8_t* to, int64_t groups);
  Multiply streams;  // kStreams panels, one row
  Multiply direct[kDirect], wide[kWide], wide_last[kWide];  // by rows less one; wide: kWidePanels panels; the others: one
};

template <class L>
constexpr Kernel kernel_of() {
  using U = UnpackedOf<L>;
  Kernel k = {L::kGroups, L::kSuperBytes, L::kOffset, L::kHalves, L::kHasMin, Dot<L::kBits>::kSigned, U::kGroupBytes, U::kCodesAt,
              unpack<L>, multiply<L, kStreams, 1, true>, {}, {}, {}};
#define INFERNO_WIDTH(T)                                                               \
  if constexpr (T <= kDirect) k.direct[T - 1] = multiply<L, 1, (T <= kDirect ? T : 1), (T <= 4)>; \
  if constexpr (T <= kWide) {                                                          \
    k.wide[T - 1] = multiply<U, kWidePanels, (T <= kWide ? T : 1), false>;             \
    k.wide_last[T - 1] = multiply<U, 1, (T <= kWide ? T : 1), false>;                  \
  }
  INFERNO_WIDTH(1) INFERNO_WIDTH(2) INFERNO_WIDTH(3) INFERNO_WIDTH(4)
  INFERNO_WIDTH(5) INFERNO_WIDTH(6) INFERNO_WIDTH(7) INFERNO_WIDTH(8)
#undef INFERNO_WIDTH
  return k;
}

constexpr Kernel kKernels[kPackedLayouts] = {
    kernel_of<Q8_0>(), kernel_of<Q4_0>(), kernel_of<Q4_1>(), kernel_of<Q5_0>(),     kernel_of<Q5_1>(),     kernel_of<Q2_K>(),      kernel_of<Q3_K>(),
    kernel_of<Q4_K>(), kernel_of<Q5_K>(), kernel_of<Q6_K>(), kernel_of<Int4<32>>(), kernel_of<Int4<64>>(), kernel_of<Int4<128>>(),
};

using Repack = void (*)(const uint8_t*, int64_t, const uint16_t*, const uint16_t*, uint8_t*, int64_t, int64_t, int64_t);
constexpr Repack kRepack[kPackedLayouts] = {
    repack_panel<FromQ8_0>, repack_panel<FromQ4_0>, repack_panel<FromQ4_1>,     repack_panel<FromQ5_0>,     repack_panel<FromQ5_1>,
    repack_panel<FromQ2_K>, repack_panel<FromQ3_K>, repack_panel<FromQ4_K>,     repack_panel<FromQ5_K>,     repack_panel<FromQ6_K>,
    repack_panel<FromInt4<32>>, repack_panel<FromInt4<64>>, repack_panel<FromInt4<128>>,
};

// Memory of a thread that grows and is kept.
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
thread_local Scratch x_scratch, panel_scratch;

int64_t panel_bytes(int layout, int64_t K) {
  return K / (kKernels[layout].groups * kColumns) * kKernels[layout].super_bytes;
}

void repack(int layout, const void* rows, int64_t row_bytes, const void* scales, const void* zeros, void* panels, int64_t N,
            int64_t K) {
  int64_t bytes = panel_bytes(layout, K), count = (N + kRows - 1) / kRows;
  parallel_chunks(count, kChunkBytes / (bytes + 1), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p++)
      kRepack[layout]((const uint8_t*)rows, row_bytes, (const uint16_t*)scales, (const uint16_t*)zeros,
                      (uint8_t*)panels + p * bytes, p, N, K);
  });
}

// ---- x ------------------------------------------------------------------------------------------------------------------

// Row t of a tile of T rows (see Activations). A group's scale is its greatest magnitude / 127. Magnitudes below 2^-100 count as
// zero (their reciprocal need not be finite); a group that holds infinities or NaN has the scale NaN.
template <class X>
void quantize_row(const Kernel& k, const X* x, int64_t groups, uint8_t* tile, int T, int t) {
  for (int64_t g = 0; g < groups; g++, x += kColumns, tile += 44 * T) {
    F32 a = load(x), b = load(x + 16);
    int32_t bits = largest_i32(max_i32(magnitude_bits(a), magnitude_bits(b)));
    float greatest, scale, inverse;
    memcpy(&greatest, &bits, 4);
    scale = greatest / 127.0f;
    inverse = 127.0f / greatest;
    if (bits >= 0x7f800000) {
      scale = __builtin_nanf("");
      inverse = 0.0f;
    } else if (bits < 0x0d800000) {
      scale = inverse = 0.0f;
    }
    I32 qa = round_i32(a * splat(inverse)), qb = round_i32(b * splat(inverse));
    if (bits >= 0x7f800000) qa = qb = splat(int32_t(0));
    int32_t sums[2] = {sum_i32(qa), sum_i32(qb)};
    if (k.halves == 1) sums[0] += sums[1];
    uint8_t q[kColumns];
    store_int8(q, qa);
    store_int8(q + 16, qb);
    UNROLL for (int j = 0; j < kFours; j++) memcpy(tile + (j * T + t) * 4, q + 4 * j, 4);
    memcpy(tile + kColumns * T + 4 * t, &scale, 4);
    for (int h = 0; h < 2; h++) {
      uint8_t* to = tile + (kColumns + 4 + 4 * h) * T + 4 * t;
      float scaled = scale * float(sums[h]);
      int32_t correction = -k.offset * sums[h];
      memcpy(to, k.has_min ? (const void*)&scaled : (const void*)&correction, 4);
    }
  }
}

void quantize_tile(const Kernel& k, int dtype, const void* x, int64_t K, uint8_t* tile, int T) {
  for (int t = 0; t < T; t++) switch (dtype) {
      case kFloat32: quantize_row(k, (const float*)x + t * K, K / kColumns, tile, T, t); break;
      case kBFloat16: quantize_row(k, (const bf16*)x + t * K, K / kColumns, tile, T, t); break;
      default: quantize_row(k, (const f16*)x + t * K, K / kColumns, tile, T, t);
    }
}

// ---- the product --------------------------------------------------------------------------------------------------------

// For a piece of the panels at a time `sink = make_sink()`, then sink.take(n, t, values) for 16 rows of W from n and row t of x,
// then sink.done().
template <class MakeSink>
void product(const Kernel& k, const uint8_t* panels, int dtype, const void* x, int64_t M, int64_t N, int64_t K,
             const MakeSink& make_sink) {
  int64_t groups = K / kColumns, bytes = groups / k.groups * k.super_bytes, count = (N + kRows - 1) / kRows;
  bool direct = M <= kDirectRows;
  int width = direct ? kDirect : kWide;
  int64_t tiles = (M + width - 1) / width, x_bytes = groups * Activations<1>::kBytes, x_size = dtype == kFloat32 ? 4 : 2;
  uint8_t* xs = x_scratch.of(size_t(M * x_bytes));
  parallel_for(tiles, 1 + 32768 / (width * K), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      int64_t t = M * i / tiles;
      quantize_tile(k, dtype, (const uint8_t*)x + t * K * x_size, K, xs + t * x_bytes, int(M * (i + 1) / tiles - t));
    }
  });
  int64_t step = direct ? (M == 1 ? kStreams : 1) : kWidePanels;
  int64_t chunk = kChunkBytes / bytes, most = count / (4 * inferno_threads);
  chunk = (chunk < most ? chunk : most) / step * step;
  parallel_chunks(count, chunk < step ? step : chunk, [&](int64_t begin, int64_t end) {
    auto sink = make_sink();
    float y[kWidePanels > kStreams ? kWidePanels * kWide * kRows : (kStreams + kDirect + kWide) * kRows];
    int64_t wide_bytes = groups * k.wide_bytes;
    uint8_t* unpacked = direct ? nullptr : panel_scratch.of(size_t(step * wide_bytes));
    for (int64_t p = begin; p < end;) {
      int side_by_side = end - p >= step ? int(step) : 1;
      if (!direct)
        for (int r = 0; r < side_by_side; r++) k.unpack(panels + (p + r) * bytes, unpacked + r * wide_bytes, groups);
      for (int64_t i = 0; i < tiles; i++) {
        int64_t t0 = M * i / tiles;
        int T = int(M * (i + 1) / tiles - t0);
        if (!direct)
          (side_by_side > 1 || kWidePanels == 1 ? k.wide : k.wide_last)[T - 1](unpacked, wide_bytes, xs + t0 * x_bytes, groups, y);
        else
          (side_by_side > 1 ? k.streams : k.direct[T - 1])(panels + p * bytes, bytes, xs + t0 * x_bytes, groups, y);
        for (int r = 0; r < side_by_side; r++)
          for (int t = 0; t < T; t++) sink.take((p + r) * kRows, t0 + t, y + (r * T + t) * kRows);
      }
      p += side_by_side;
    }
    sink.done();
  });
}

template <class Y>
struct Rows {
  Y* y;
  const Y* bias;
  int64_t N;
  void take(int64_t n, int64_t t, const float* values) const {
    Y* to = y + t * N + n;
    if (n + kRows <= N) {
      store(to, bias ? load(values) + load(bias + n) : load(values));
      return;
    }
    for (int i = 0; n + i < N; i++) from_float(to + i, bias ? values[i] + to_float(bias[n + i]) : values[i]);
  }
  void done() const {}
};

template <class Y>
void matmul_to(const Kernel& k, const void* panels, int x_dtype, const void* x, void* y, const void* bias, int64_t M, int64_t N,
               int64_t K) {
  product(k, (const uint8_t*)panels, x_dtype, x, M, N, K, [&] { return Rows<Y>{(Y*)y, (const Y*)bias, N}; });
}

void matmul(int layout, const void* panels, int x_dtype, const void* x, int y_dtype, void* y, const void* bias, int64_t M, int64_t N,
            int64_t K) {
  const Kernel& k = kKernels[layout];
  switch (y_dtype) {
    case kFloat32: return matmul_to<float>(k, panels, x_dtype, x, y, bias, M, N, K);
    case kBFloat16: return matmul_to<bf16>(k, panels, x_dtype, x, y, bias, M, N, K);
    default: return matmul_to<f16>(k, panels, x_dtype, x, y, bias, M, N, K);
  }
}

// ---- the greatest -------------------------------------------------------------------------------------------------------

constexpr int kArgmaxRows = 64;

struct Best {
  float value[kArgmaxRows];
  int64_t id[kArgmaxRows];
  static void offer(Best* b, int64_t t, float value, int64_t id) {
    // Not true of a NaN, nor of the first of two equals.
    bool better = b->id[t] < 0 || value > b->value[t] || (value == b->value[t] && id < b->id[t]);
    if (__builtin_fabsf(value) <= __FLT_MAX__ && better) b->value[t] = value, b->id[t] = id;
  }
};

struct Greatest {
  Best* all;
  int64_t M, N;
  Best here;
  Greatest(Best* all, int64_t M, int64_t N) : all(all), M(M), N(N) {
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

void argmax(int layout, const void* panels, int x_dtype, const void* x, int64_t* ids, int64_t M, int64_t N, int64_t K) {
  for (int64_t t = 0; t < M; t += kArgmaxRows) {
    int64_t count = M - t < kArgmaxRows ? M - t : kArgmaxRows;
    Best all;
    for (int64_t i = 0; i < count; i++) all.id[i] = -1;
    const uint8_t* from = (const uint8_t*)x + t * K * (x_dtype == kFloat32 ? 4 : 2);
    product(kKernels[layout], (const uint8_t*)panels, x_dtype, from, count, N, K, [&] { return Greatest(&all, count, N); });
    for (int64_t i = 0; i < count; i++) ids[t + i] = all.id[i];
  }
}

// ---- rows of the matrix -------------------------------------------------------------------------------------------------

// Exact but for the last rounding to Y: scale * code has at most 24 bits.
template <class Y>
void row_of(const Kernel& k, const uint8_t* group, int lane, int64_t groups, Y* y) {
  for (int64_t g = 0; g < groups; g++, group += k.wide_bytes, y += kColumns) {
    float values[kColumns];
    for (int i = 0; i < kColumns; i++) {
      int half = k.halves == 2 ? i / 16 : 0;
      float scale, min;
      memcpy(&scale, group + 4 * (kRows * half + lane), 4);
      memcpy(&min, group + 4 * (kRows * (k.halves + half) + lane), 4);
      uint8_t code = group[k.codes_at + 64 * (i / 4) + 4 * lane + i % 4];
      float w = scale * float(k.signed_codes ? int8_t(code) : int(code) - k.offset);
      values[i] = k.has_min ? w - min : w;
    }
    store(y, load(values));
    store(y + 16, load(values + 16));
  }
}

template <class Y>
void rows_to(const Kernel& k, const uint8_t* panels, const int64_t* ids, Y* y, int64_t M, int64_t N, int64_t K) {
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

void rows(int layout, const void* panels, const int64_t* ids, int y_dtype, void* y, int64_t M, int64_t N, int64_t K) {
  const Kernel& k = kKernels[layout];
  switch (y_dtype) {
    case kFloat32: return rows_to(k, (const uint8_t*)panels, ids, (float*)y, M, N, K);
    case kBFloat16: return rows_to(k, (const uint8_t*)panels, ids, (bf16*)y, M, N, K);
    default: return rows_to(k, (const uint8_t*)panels, ids, (f16*)y, M, N, K);
  }
}

}  // namespace

extern const PackedLinear INFERNO_EXPORT(packed);
const PackedLinear INFERNO_EXPORT(packed) = {panel_bytes, repack, matmul, argmax, rows};
