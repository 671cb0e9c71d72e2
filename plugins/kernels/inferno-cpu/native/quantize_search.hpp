// The searches for scales, as in ggml's ggml-quants.c (https://github.com/ggml-org/ggml), for
// sixteen groups of columns at once: lane i of a vector belongs to group i, and each lane computes
// what ggml computes for its group, in the same order. Vectors are GCC's, as wide as the registers.
#pragma once
#include "simd.hpp"

namespace {

constexpr int kBatch = 16;  // groups that are searched together
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t Mask __attribute__((vector_size(4 * kLanes)));

INL Vec all(float x) { return Vec{} + x; }
INL Vec at(const float* p) {
  Vec v;
  memcpy(&v, p, sizeof v);
  return v;
}
INL void put(float* p, Vec v) { memcpy(p, &v, sizeof v); }
INL Vec pick(Mask m, Vec x, Vec y) { return m ? x : y; }
INL Vec magnitude(Vec x) { return (Vec)((Mask)x & 0x7fffffff); }
INL Vec root(Vec x) {
  for (int i = 0; i < kLanes; i++) x[i] = __builtin_sqrtf(x[i]);
  return x;
}
// To nearest, ties to even, for |x| < 2^22.
INL Vec nearest(Vec x) { return (x + 12582912.0f) - 12582912.0f; }
INL float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }
// A NaN becomes `low`. GCC makes two instructions of each comparison and choice.
INL Vec clamped(Vec x, float low, float high) {
#if defined(__AVX512F__)
  return (Vec)_mm512_min_ps(_mm512_max_ps((__m512)x, _mm512_set1_ps(low)), _mm512_set1_ps(high));
#elif defined(__AVX__)
  return (Vec)_mm256_min_ps(_mm256_max_ps((__m256)x, _mm256_set1_ps(low)), _mm256_set1_ps(high));
#else
  x = pick(x > low, x, all(low));
  return pick(x < high, x, all(high));
#endif
}
INL bool any(Mask m) {
  int32_t found = 0;
  for (int i = 0; i < kLanes; i++) found |= m[i];
  return found != 0;
}

constexpr float kTiny = 1e-15f;  // groups of smaller values are zeros

// Sixteen groups of n columns each, and the weights of their squared errors: [column][group].
template <int n>
struct Batch {
  alignas(64) float x[n][kBatch], w[n][kBatch];
};
struct Scales {
  alignas(64) float scale[kBatch], min[kBatch];
};

// Codes 0 .. most with x = scale * code - min, and the best codes. As make_qkx2_quants and
// make_qkx3_quants: `steps` + 1 candidates for the range of codes, from most + first on. kZero: the
// range includes zero, so that a code for it exists.
template <bool kZero = false, int n>
void search_min(const Batch<n>& b, int most, float first, float step, int steps, bool absolute,
                Scales* to, float (*codes)[kBatch]) {
  alignas(64) float l[n][kLanes];
  for (int g = 0; g < kBatch; g += kLanes) {
    auto x = [&](int j) { return at(b.x[j] + g); };
    auto w = [&](int j) { return at(b.w[j] + g); };
    Vec low = x(0), high = x(0), sum_w = w(0), sum_x = sum_w * x(0);
    for (int j = 1; j < n; j++) {
      low = pick(x(j) < low, x(j), low);
      high = pick(x(j) > high, x(j), high);
      sum_w += w(j);
      sum_x += w(j) * x(j);
    }
    low = pick(low > 0.0f, all(0.0f), low);
    if (kZero) high = pick(high < 0.0f, all(0.0f), high);
    const Mask flat = ~(high > low);
    auto error_of = [&](Vec scale, Vec min) {
      Vec total = all(0.0f);
      for (int j = 0; j < n; j++) {
        Vec diff = scale * at(l[j]) + min - x(j);
        total += w(j) * (absolute ? magnitude(diff) : diff * diff);
      }
      return total;
    };
    Vec inverse = float(most) / pick(flat, all(1.0f), high - low), scale = 1.0f / inverse;
    Vec best_inverse = inverse, best_low = low;
    for (int j = 0; j < n; j++)
      put(l[j], clamped(nearest(inverse * (x(j) - low)), 0.0f, float(most)));
    Vec best = error_of(scale, low);
    for (int s = 0; s <= steps; s++) {
      inverse = (first + step * float(s) + float(most)) / pick(flat, all(1.0f), high - low);
      Vec sum_l = all(0.0f), sum_l2 = all(0.0f), sum_xl = all(0.0f);
      for (int j = 0; j < n; j++) {
        Vec code = clamped(nearest(inverse * (x(j) - low)), 0.0f, float(most));
        put(l[j], code);
        Vec wl = w(j) * code;
        sum_l += wl;
        sum_l2 += wl * code;
        sum_xl += wl * x(j);
      }
      Vec d = sum_w * sum_l2 - sum_l * sum_l;
      const Mask solved = d > 0.0f;
      d = pick(solved, d, all(1.0f));
      Vec this_scale = (sum_w * sum_xl - sum_x * sum_l) / d;
      Vec this_min = (sum_l2 * sum_x - sum_l * sum_xl) / d;
      const Mask positive = this_min > 0.0f;
      this_scale = pick(positive, sum_xl / pick(positive, sum_l2, all(1.0f)), this_scale);
      this_min = pick(positive, all(0.0f), this_min);
      Vec error = error_of(this_scale, this_min);
      const Mask better = solved & (error < best);
      best = pick(better, error, best);
      scale = pick(better, this_scale, scale);
      best_inverse = pick(better, inverse, best_inverse);
      best_low = pick(better, low, best_low);
      low = pick(better, this_min, low);  // later candidates start from it, as in ggml
    }
    for (int j = 0; j < n; j++) {
      Vec code = clamped(nearest(best_inverse * (x(j) - best_low)), 0.0f, float(most));
      put(codes[j] + g, pick(flat, all(0.0f), code));
    }
    put(to->scale + g, pick(flat, all(0.0f), scale));
    put(to->min + g, -low);
  }
}

// The value of largest magnitude of each group, with its sign, the first among equals.
template <int n>
INL Vec extreme(const Batch<n>& b, int g) {
  Vec most = all(0.0f), found = all(0.0f);
  for (int j = 0; j < n; j++) {
    Vec x = at(b.x[j] + g), size = magnitude(x);
    const Mask larger = size > most;
    most = pick(larger, size, most);
    found = pick(larger, x, found);
  }
  return found;
}

// Codes -most .. most - 1 with x = scale * code; `codes` are these plus most. As make_qx_quants.
template <int n>
void search_scale(const Batch<n>& b, int most, float* to, float (*codes)[kBatch]) {
  const float low = float(-most), high = float(most - 1);
  for (int g = 0; g < kBatch; g += kLanes) {
    auto x = [&](int j) { return at(b.x[j] + g); };
    auto w = [&](int j) { return at(b.w[j] + g); };
    Vec peak = extreme(b, g);
    const Mask zero = magnitude(peak) < kTiny;
    peak = pick(zero, all(1.0f), peak);
    Vec best_inverse = all(0.0f), scale = all(0.0f), best = all(0.0f);
    for (int s = -10; s <= 9; s++) {  // -10: the first one, without a change
      if (s == 0) continue;
      Vec inverse = -(float(most) + (s < -9 ? 0.0f : 0.1f * float(s))) / peak;
      Vec sum_lx = all(0.0f), sum_l2 = all(0.0f);
      for (int j = 0; j < n; j++) {
        Vec code = clamped(nearest(inverse * x(j)), low, high);
        sum_lx += w(j) * x(j) * code;
        sum_l2 += w(j) * code * code;
      }
      const Mask some = sum_l2 > 0.0f;
      Vec ratio = sum_lx / pick(some, sum_l2, all(1.0f));
      if (s < -9) {
        best_inverse = inverse;
        scale = pick(some, ratio, all(0.0f));
        best = scale * sum_lx;
        continue;
      }
      const Mask better = some & (sum_lx * sum_lx > best * sum_l2);
      best_inverse = pick(better, inverse, best_inverse);
      scale = pick(better, ratio, scale);
      best = pick(better, ratio * sum_lx, best);
    }
    for (int j = 0; j < n; j++) {
      Vec code = clamped(nearest(best_inverse * x(j)), low, high) + float(most);
      put(codes[j] + g, pick(zero, all(0.0f), code));
    }
    put(to + g, pick(zero, all(0.0f), scale));
  }
}

// The same by changing one code after the other, with weights x^2. As make_q3_quants.
template <int n>
void search_codes(const Batch<n>& b, int most, float* to, float (*codes)[kBatch]) {
  const float low = float(-most), high = float(most - 1);
  alignas(64) float l[n][kLanes];
  for (int g = 0; g < kBatch; g += kLanes) {
    auto x = [&](int j) { return at(b.x[j] + g); };
    Vec peak = extreme(b, g);
    const Mask zero = magnitude(peak) < kTiny;
    Vec inverse = -float(most) / pick(zero, all(1.0f), peak);
    Vec sum_lx = all(0.0f), sum_l2 = all(0.0f);
    for (int j = 0; j < n; j++) {
      Vec code = clamped(nearest(inverse * x(j)), low, high), w = x(j) * x(j);
      put(l[j], code);
      sum_lx += w * x(j) * code;
      sum_l2 += w * code * code;
    }
    for (int round = 0; round < 5; round++) {
      Mask changed = Mask{};
      for (int j = 0; j < n; j++) {
        Vec w = x(j) * x(j), code = at(l[j]);
        Vec lx = sum_lx - w * x(j) * code, l2 = sum_l2 - w * code * code;
        const Mask positive = lx > 0.0f;
        Vec other = clamped(nearest(x(j) * l2 / pick(positive, lx, all(1.0f))), low, high);
        lx += w * x(j) * other;
        l2 += w * other * other;
        const Mask better = positive & (other != code) & (l2 > 0.0f) &
                            (lx * lx * sum_l2 > sum_lx * sum_lx * l2);
        put(l[j], pick(better, other, code));
        sum_lx = pick(better, lx, sum_lx);
        sum_l2 = pick(better, l2, sum_l2);
        changed |= better;
      }
      if (!any(changed)) break;
    }
    for (int j = 0; j < n; j++) put(codes[j] + g, pick(zero, all(0.0f), at(l[j]) + float(most)));
    const Mask some = ~zero & (sum_l2 > 0.0f);
    put(to + g, pick(some, sum_lx / pick(some, sum_l2, all(1.0f)), all(0.0f)));
  }
}

constexpr float kCurve[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};

// The value of the curve next to a, and its index: the higher of two at the same distance, except
// beyond the ends. Sums of comparisons, which are -1 where they hold.
INL Vec on_curve(Vec a, Vec* value) {
  Vec index = all(0.0f), found = all(kCurve[0]);
  for (int i = 1; i < 16; i++) {
    // ggml takes the upper one unless a is nearer to the lower: a - low < high - a.
    const Mask above = ~(a - kCurve[i - 1] < kCurve[i] - a);
    index = pick(above, all(float(i)), index);
    found = pick(above, all(kCurve[i]), found);
  }
  *value = found;
  return index;
}

// IQ4_NL: codes of a fixed curve with x = scale * curve[code].
template <int n>
void search_curve(const Batch<n>& b, float* to, float (*codes)[kBatch]) {
  for (int g = 0; g < kBatch; g += kLanes) {
    auto x = [&](int j) { return at(b.x[j] + g); };
    auto w = [&](int j) { return at(b.w[j] + g); };
    Vec peak = extreme(b, g), q;
    const Mask zero = magnitude(peak) < kTiny;
    peak = pick(zero, all(1.0f), peak);
    Vec scale = all(0.0f), best = all(0.0f);
    for (int s = -8; s <= 7; s++) {  // -8: the first one, without a change
      Vec inverse = s < -7 ? 1.0f / (-peak / kCurve[0]) : (float(s) + kCurve[0]) / peak;
      Vec sum_qx = all(0.0f), sum_q2 = all(0.0f);
      for (int j = 0; j < n; j++) {
        on_curve(inverse * x(j), &q);
        sum_qx += w(j) * q * x(j);
        sum_q2 += w(j) * q * q;
      }
      const Mask some = sum_q2 > 0.0f;
      Vec ratio = sum_qx / pick(some, sum_q2, all(1.0f));
      const Mask better = some & ((sum_qx * sum_qx > best * sum_q2) | (s < -7 ? Mask{} == 0 : Mask{}));
      scale = pick(better, ratio, scale);
      best = pick(better, ratio * sum_qx, best);
    }
    const Mask none = zero | (scale == 0.0f);
    Vec inverse = pick(none, all(0.0f), 1.0f / pick(none, all(1.0f), scale));
    for (int j = 0; j < n; j++) put(codes[j] + g, on_curve(inverse * x(j), &q));
    put(to + g, pick(zero, all(0.0f), scale));
  }
}

// Codes 0 .. most of n nonnegative values with x = scale * code. As make_qp_quants.
INL float search_positive(int n, int most, const float* x, const float* w, uint8_t* codes) {
  float peak = 0.0f;
  for (int i = 0; i < n; i++) peak = x[i] > peak ? x[i] : peak;
  if (!(peak >= kTiny)) {
    memset(codes, 0, size_t(n));
    return 0.0f;
  }
  auto code_of = [&](float v) {
    float l = nearest(v);
    return l > 0.0f ? l < float(most) ? l : float(most) : 0.0f;
  };
  float inverse = float(most) / peak, best = 0.0f;
  for (int s = -5; s <= 4; s++) {  // -5: the first one, without a change
    if (s == 0) continue;
    float tried = s < -4 ? inverse : (0.1f * float(s) + float(most)) / peak, scale = 1.0f / tried;
    float error = 0.0f;
    for (int i = 0; i < n; i++) {
      float diff = x[i] - scale * code_of(tried * x[i]);
      error += w[i] * diff * diff;
    }
    if (s < -4 || error < best) {
      best = error;
      inverse = tried;
    }
  }
  float sum_lx = 0.0f, sum_l2 = 0.0f, l[16];
  for (int i = 0; i < n; i++) {
    l[i] = code_of(inverse * x[i]);
    sum_lx += w[i] * x[i] * l[i];
    sum_l2 += w[i] * l[i] * l[i];
  }
  for (int round = 0; round < 5; round++) {
    bool changed = false;
    for (int i = 0; i < n; i++) {
      float lx = sum_lx - w[i] * x[i] * l[i], l2 = sum_l2 - w[i] * l[i] * l[i];
      if (!(lx > 0.0f && l2 > 0.0f)) continue;
      float other = code_of(x[i] * l2 / lx);
      if (other == l[i]) continue;
      lx += w[i] * x[i] * other;
      l2 += w[i] * other * other;
      if (lx * lx * sum_l2 > sum_lx * sum_lx * l2) {
        l[i] = other;
        sum_lx = lx;
        sum_l2 = l2;
        changed = true;
      }
    }
    if (!changed) break;
  }
  for (int i = 0; i < n; i++) codes[i] = uint8_t(l[i]);
  return sum_l2 > 0.0f ? sum_lx / sum_l2 : 0.0f;
}

}  // namespace
