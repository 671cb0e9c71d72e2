// Quantizing of dense matrices. Compiled once for each instruction set.
#include "quantize.hpp"

#include "parallel.hpp"
#include "quantize_blocks.hpp"

namespace {

// Sixteen groups of a matrix, as they are stored: one after the other, from element `first`.
template <class T>
struct Part {
  const T* w;
  const float* importance;
  int64_t first, columns;
  int count;  // groups; those beyond are zeros
};

template <int n, class T>
INL void load_values(const Part<T>& part, Batch<n>* b, float* x) {
  const int64_t size = int64_t(part.count) * n;
  for (int64_t i = 0; i < size; i += 16) store(x + i, load(part.w + part.first + i));
  memset(x + size, 0, size_t(kBatch * n - size) * 4);
  transpose_rows(x, n, b->x[0]);
}

// The mean of x^2 over elements begin .. begin + size, and where that was computed last: all groups
// of a row, or of a superblock, need the same.
struct Mean {
  int64_t begin = -1;
  float value = 0.0f;
  template <class T>
  float of(const T* w, int64_t first, int64_t size, float factor) {
    if (begin == first) return value;
    float squares = 0.0f;  // in ggml's order
    for (int64_t i = 0; i < size; i += 16) {
      float x[16];
      store(x, load(w + first + i));
      for (float v : x) squares += v * v;
    }
    begin = first;
    return value = factor * squares / float(size);
  }
};

// weights = importance * sqrt(mean + x^2), where mean is `factor` times that of x^2 over each
// `span` of elements. A span of 0 is the whole row.
template <int n, class T>
void weigh(const Part<T>& part, const float* x, int64_t span, float factor, Mean* mean,
           Batch<n>* b) {
  alignas(64) float w[kBatch * n];
  memset(w, 0, sizeof w);
  for (int g = 0; g < part.count; g++) {
    const int64_t start = part.first + int64_t(g) * n, column = start % part.columns;
    const int64_t size = span ? span : part.columns;
    const float value = mean->of(part.w, start / size * size, size, factor);
    const float* importance = part.importance + column;
    for (int j = 0; j < n; j++) {
      const float v = x[g * n + j];
      w[g * n + j] = importance[j] * __builtin_sqrtf(value + v * v);
    }
  }
  transpose_rows(w, n, b->w[0]);
}

template <int n, class T>
INL void weigh_by_importance(const Part<T>& part, Batch<n>* b) {
  alignas(64) float w[kBatch * n];
  memset(w, 0, sizeof w);
  for (int g = 0; g < part.count; g++)
    memcpy(w + g * n, part.importance + (part.first + int64_t(g) * n) % part.columns, n * 4);
  transpose_rows(w, n, b->w[0]);
}

// weights = weight(x) in each lane, without importance.
template <int n, class Weight>
INL void weigh_by(Batch<n>* b, const Weight& weight) {
  for (int g = 0; g < kBatch; g += kLanes)
    for (int j = 0; j < n; j++) put(b->w[j] + g, weight(at(b->x[j] + g)));
}
template <int n>
INL void weigh_by_square(Batch<n>* b) {
  weigh_by(b, [](Vec x) { return x * x; });
}
// Of Q4_K and Q5_K: the root mean square of the group plus |x|.
INL void weigh_around_mean(Batch<32>* b) {
  for (int g = 0; g < kBatch; g += kLanes) {
    Vec squares = all(0.0f);
    for (int j = 0; j < 32; j++) squares += at(b->x[j] + g) * at(b->x[j] + g);
    const Vec mean = root(squares / 32.0f);
    for (int j = 0; j < 32; j++) put(b->w[j] + g, mean + magnitude(at(b->x[j] + g)));
  }
}

// Q4_0, Q5_0 and Q8_0 without importance: the value of largest magnitude is the lowest code, or for
// Q8_0 its magnitude the highest.
template <class T>
void plain_symmetric(int layout, const Part<T>& part, const float* x, uint8_t* to) {
  const int bytes = layout == kToQ8_0 ? 34 : layout == kToQ5_0 ? 22 : 18;
  const float half = layout == kToQ5_0 ? 16.0f : 8.0f;
  for (int g = 0; g < part.count; g++, x += 32, to += bytes) {
    float most = 0.0f, peak = 0.0f;
    for (int j = 0; j < 32; j++)
      if (__builtin_fabsf(x[j]) > most) {
        most = __builtin_fabsf(x[j]);
        peak = x[j];
      }
    const float d = layout == kToQ8_0 ? most / 127.0f : peak / -half;
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    to_half(d, to);
    uint8_t codes[32];
    for (int j = 0; j < 32; j++) {
      const float scaled = x[j] * inverse;
      if (layout == kToQ8_0) {  // ties away from zero
        codes[j] = uint8_t(int8_t(scaled < 0.0f ? scaled - 0.5f : scaled + 0.5f));
      } else {
        const float code = scaled + half + 0.5f;
        codes[j] = uint8_t(code > 0.0f ? code < 2 * half ? code : 2 * half - 1 : 0.0f);
      }
    }
    if (layout == kToQ8_0) {
      memcpy(to + 2, codes, 32);
      continue;
    }
    if (layout == kToQ5_0) fifth_bits(codes, to + 2);
    nibbles(codes, 16, to + bytes - 16);
  }
}

// Q4_1 and Q5_1 without importance: the lowest value is code 0, the highest the highest.
template <class T>
void plain_with_min(int layout, const Part<T>& part, const float* x, uint8_t* to) {
  const int bytes = layout == kToQ5_1 ? 24 : 20;
  const float most = layout == kToQ5_1 ? 31.0f : 15.0f;
  for (int g = 0; g < part.count; g++, x += 32, to += bytes) {
    float low = x[0], high = x[0];
    for (int j = 1; j < 32; j++) {
      low = x[j] < low ? x[j] : low;
      high = x[j] > high ? x[j] : high;
    }
    const float d = (high - low) / most, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    to_half(d, to);
    to_half(low, to + 2);
    uint8_t codes[32];
    for (int j = 0; j < 32; j++) {
      const float code = (x[j] - low) * inverse + 0.5f;
      codes[j] = uint8_t(code > 0.0f ? code < most + 1 ? code : most : 0.0f);
    }
    if (layout == kToQ5_1) fifth_bits(codes, to + 4);
    nibbles(codes, 16, to + bytes - 16);
  }
}

constexpr int columns_of(int layout) {  // of a group
  switch (layout) {
    case kToQ2_K: case kToQ3_K: case kToQ6_K: return 16;
    case kToInt4_64: return 64;
    case kToInt4_128: return 128;
    default: return 32;
  }
}

template <int LAYOUT, class T>
void quantize_part(const Part<T>& part, Mean* mean, uint8_t* to, uint16_t* scales,
                   uint16_t* zeros) {
  constexpr int n = columns_of(LAYOUT);
  constexpr int kK = LAYOUT == kToQ4_K || LAYOUT == kToQ5_K ? 8 : 16;  // groups of a superblock
  Batch<n> b;
  alignas(64) float x[kBatch * n], codes[n][kBatch];
  Scales s;
  const bool weighted = part.importance != nullptr;
  load_values<n>(part, &b, x);
  if constexpr (LAYOUT == kToQ8_0 || LAYOUT == kToQ4_0 || LAYOUT == kToQ5_0) {
    if (LAYOUT == kToQ8_0 || !weighted) return plain_symmetric(LAYOUT, part, x, to);
    constexpr int kBits = LAYOUT == kToQ5_0 ? 5 : 4;
    weigh(part, x, 0, 1.0f, mean, &b);
    search_scale(b, 1 << (kBits - 1), s.scale, codes);
    uint8_t l[kBatch * n];
    in_order<n>(codes, l);
    write_symmetric<kBits>(s.scale, l, part.count, to);
  } else if constexpr (LAYOUT == kToQ4_1 || LAYOUT == kToQ5_1) {
    if (!weighted) return plain_with_min(LAYOUT, part, x, to);
    constexpr int kBits = LAYOUT == kToQ5_1 ? 5 : 4;
    weigh(part, x, 0, 1.0f, mean, &b);
    search_min(b, (1 << kBits) - 1, -0.9f, 0.05f, 36, false, &s, codes);
    uint8_t l[kBatch * n];
    in_order<n>(codes, l);
    write_with_min<kBits>(s, l, part.count, to);
  } else if constexpr (LAYOUT == kToQ4_K || LAYOUT == kToQ5_K) {
    constexpr int kMost = LAYOUT == kToQ5_K ? 31 : 15;
    if (weighted) {
      weigh(part, x, 256, 2.0f, mean, &b);
      search_min(b, kMost, -0.9f, 0.05f, 36, false, &s, codes);
    } else {
      weigh_around_mean(&b);
      constexpr int kSteps = LAYOUT == kToQ5_K ? 15 : 20;
      search_min(b, kMost, LAYOUT == kToQ5_K ? -0.5f : -1.0f, 0.1f, kSteps, false, &s, codes);
    }
    write_k45<LAYOUT == kToQ5_K ? 5 : 4>(b, s, weighted, codes, part.count / kK, to);
  } else if constexpr (LAYOUT == kToQ2_K) {
    if (weighted) {
      weigh(part, x, 256, 1.0f, mean, &b);
      search_min(b, 3, -0.9f, 0.05f, 36, false, &s, codes);
    } else {
      weigh_by(&b, [](Vec v) { return magnitude(v); });
      search_min(b, 3, -0.5f, 0.1f, 15, true, &s, codes);
    }
    write_q2_k(b, s, weighted, codes, to);
  } else if constexpr (LAYOUT == kToQ3_K) {
    if (weighted) {
      weigh(part, x, 256, 2.0f, mean, &b);
      search_scale(b, 4, s.scale, codes);
    } else {
      search_codes(b, 4, s.scale, codes);
    }
    write_q3_k(b, s.scale, weighted, codes, to);
  } else if constexpr (LAYOUT == kToQ6_K) {
    if (weighted)
      weigh_by_importance(part, &b);
    else
      weigh_by_square(&b);
    search_scale(b, 32, s.scale, codes);
    write_q6_k(b, s.scale, codes, to);
  } else if constexpr (LAYOUT == kToIQ4_NL) {
    if (weighted)
      weigh(part, x, 32, 2.0f, mean, &b);
    else
      weigh_by_square(&b);
    search_curve(b, s.scale, codes);
    uint8_t l[kBatch * n];
    in_order<n>(codes, l);
    write_symmetric<4>(s.scale, l, part.count, to);
  } else {
    if (weighted)
      weigh_by_importance(part, &b);
    else
      weigh_by(&b, [](Vec) { return all(1.0f); });
    search_min<true>(b, 15, -1.0f, 0.1f, 20, false, &s, codes);
    write_int4(b, s, codes, part.count, to, scales, zeros);
  }
}

// Bytes of a group of columns; those of K-quants of a sixteenth or an eighth of a superblock.
constexpr int kBlockBytes[] = {34, 18, 20, 22, 24, 84, 110, 144, 176, 210, 16, 32, 64, 18};

template <int LAYOUT, class T>
void quantize_matrix(const T* w, const float* importance, uint8_t* blocks, uint16_t* scales,
                     uint16_t* zeros, int64_t N, int64_t K) {
  constexpr int n = columns_of(LAYOUT);
  constexpr bool kSuper = LAYOUT >= kToQ2_K && LAYOUT <= kToQ6_K;
  constexpr int64_t kBlock = kSuper ? 256 : n;  // columns of a block
  const int64_t groups = N * K / n, batches = (groups + kBatch - 1) / kBatch;
  parallel_chunks(batches, 64, [&](int64_t begin, int64_t end) {
    Mean mean;
    for (int64_t i = begin; i < end; i++) {
      const int64_t first = i * kBatch;
      const int64_t count = groups - first < kBatch ? groups - first : kBatch;
      Part<T> part{w, importance, first * n, K, int(count)};
      quantize_part<LAYOUT>(part, &mean, blocks + first * n / kBlock * kBlockBytes[LAYOUT],
                            scales + (scales ? first : 0), zeros + (zeros ? first : 0));
    }
  });
}

void quantize(int layout, int dtype, const void* w, const float* importance, uint8_t* blocks,
              uint16_t* scales, uint16_t* zeros, int64_t N, int64_t K) {
  with_type(dtype, [&](auto element) {
    const auto* from = (const decltype(element)*)w;
    switch (layout) {
#define CASE(name) \
  case name: return quantize_matrix<name>(from, importance, blocks, scales, zeros, N, K);
      CASE(kToQ8_0)
      CASE(kToQ4_0)
      CASE(kToQ4_1)
      CASE(kToQ5_0)
      CASE(kToQ5_1)
      CASE(kToQ2_K)
      CASE(kToQ3_K)
      CASE(kToQ4_K)
      CASE(kToQ5_K)
      CASE(kToQ6_K)
      CASE(kToInt4_32)
      CASE(kToInt4_64)
      CASE(kToInt4_128)
      CASE(kToIQ4_NL)
#undef CASE
    }
  });
}

}  // namespace

extern const Quantizer INFERNO_EXPORT(quantize);
const Quantizer INFERNO_EXPORT(quantize) = {quantize};
