// The running softmax of a row, and the scales of queries and weights over 8-bit caches.
//
// Over such a cache, a query and the weights of a chunk of keys are multiplied by a factor that
// makes their largest element as large as their type allows: int16 for int8, so that they are
// rounded to 2^-15 of it; a power of two for fp8, since its elements are read as tiny numbers. The
// inverse of the factor is kept beside them, as a unit.
#pragma once
#include "attention_tile.hpp"

namespace {

// What the largest element of a query or of weights becomes, and the factor between an element of
// the cache and what the kernel reads.
constexpr float kFp8Largest = 0x1p100f;
// The smallest peak of fp8: beside smaller ones, as of keys 19 nats below the maximum, the factor
// would overflow. Elements below it still become normal numbers.
constexpr float kFp8Least = 0x1p-26f;
template <class E>
constexpr float kLargest = __is_same(E, fp8) ? kFp8Largest : 32767.0f;
template <class E>
constexpr float kRead = __is_same(E, fp8) ? kFp8Read : 1.0f;

struct Unit { float factor, inverse; };

// The factor for elements of at most `peak`, and the unit of what results, of reading included.
template <class E>
INL Unit unit_of(float peak) {
  if (peak < 1e-30f) return {0.0f, 0.0f};
  if constexpr (__is_same(E, fp8)) {  // the power of two below
    uint32_t u;
    memcpy(&u, &peak, 4);
    u &= 0x7f800000;
    memcpy(&peak, &u, 4);
    if (peak < kFp8Least) peak = kFp8Least;
  }
  return {kLargest<E> / peak, peak * (kRead<E> / kLargest<E>)};
}

INL void put_floats(float* to, F32 x) { store(to, x); }
INL void put_floats(bf16* to, F32 x) { store(to, x); }
INL void put_floats(int16_t* to, F32 x) { store(to, round_i32(x)); }

// Scale a row of C queries for a cache of 8-bit elements. Returns its unit; NaN, and a row of
// zeros, if an element is not finite.
template <class E, class X>
float scale_query(const float* q, int C, X* to) {
  F32 top = splat(0.0f), wrong = splat(0.0f);
  for (int c = 0; c < C; c += 16) {
    F32 x = load(q + c);
    top = max(abs(x), top), wrong = fma(x, splat(0.0f), wrong);
  }
  float check = sum(wrong);
  Unit unit = check == 0.0f ? unit_of<E>(largest(top)) : Unit{0.0f, __builtin_nanf("")};
  for (int c = 0; c < C; c += 16) {
    F32 x = check == 0.0f ? load(q + c) : splat(0.0f);
    put_floats(to + c, x * splat(unit.factor));
  }
  return unit.inverse;
}

// The waves of a key/value head.
struct HeadWaves {
  const float* lines = nullptr;
  const int32_t* used = nullptr;
  int64_t stride = 0;
  int count = 0;
};

// The sum of waves of these amplitudes at sixteen positions.
INL F32 sum_at(const HeadWaves& waves, const float* amplitudes, int64_t position) {
  F32 total = splat(0.0f);
  for (int w = 0; w < waves.count; w++) {
    const float* line = waves.lines + waves.used[w] * waves.stride;
    total = fma(load(line + position), splat(amplitudes[w]), total);
  }
  return total;
}

// The factors by which sums that are relative to these largest scores shrink, as others become the
// largest. 0 if there was no key, whatever the sums are.
INL F32 fade_of(F32 best, F32 top) {
  return exp2_negative(best - top) * min(best - splat(kNothing), splat(1.0f));
}

// Raise a row's largest score to that of a chunk. Returns the factor by which its sums shrink.
INL float raise(float& best, float top) {
  if (!(top > best)) return best == kNothing ? 0.0f : 1.0f;  // mostly
  float each[16];
  store(each, fade_of(splat(best), splat(top)));
  best = top;
  return each[0];
}

// Raise those of many rows, and set the factors.
INL void raise(float* best, const float* tops, int rows, float* fade) {
  for (int r = 0; r < rows; r += 16) {
    F32 before = load(best + r), now = max(load(tops + r), before);
    store(fade + r, fade_of(before, now)), store(best + r, now);
  }
}

// The running softmax of a row, over a chunk's panels [first, stop); keys outside [low, high) are
// hidden. Whole: none is, and there are kPanels of them.
struct Softmax {
  float scale, soft_cap;
  HeadWaves waves;
  const float *k_scales[kPanels], *v_scales[kPanels];  // null: none

  // Turn scores, of this unit, into exponents of 2, with waves of these amplitudes; the first key
  // of all is at position `base`. Returns the largest.
  template <bool Scaled, bool Whole>
  float exponents_of(float* scores, float unit, const float* amplitudes, int64_t base, int first,
                     int stop, int64_t low, int64_t high) const {
    F32 top = splat(kNothing), factor = splat(Scaled ? scale * unit : scale);
    for (int p = Whole ? 0 : first; p < (Whole ? kPanels : stop); p++) {
      F32 x = load(scores + 16 * p) * factor;
      if constexpr (Scaled) {
        x = x * load(k_scales[p]);
        if (waves.count) x = fma(sum_at(waves, amplitudes, base + 16 * p), splat(scale), x);
      }
      if (soft_cap > 0) x = splat(soft_cap * kLog2e) * tanh(x);
      if (!Whole && (low > 16 * p || high < 16 * p + 16))
        x = keep(x, splat(kNothing), low - 16 * p, high - 16 * p);
      store(scores + 16 * p, x);
      top = max(x, top);
    }
    return largest(top);
  }

  // Turn exponents into weights, relative to the largest one so far, `best`. Adds them to the
  // sixteen partial sums `sums`, which fade, and returns the unit of the weights.
  template <bool Scaled, bool Whole, class E, class X>
  float weights_of(float* exponents, X* weights, int first, int stop, int64_t low, int64_t high,
                   float best, float fade, float* sums) const {
    if constexpr (Whole) first = 0, stop = kPanels;
    F32 total = splat(0.0f), peak = splat(0.0f);
    for (int p = first; p < stop; p++) {
      F32 w = exp2_negative(load(exponents + 16 * p) - splat(best));
      const bool partly = !Whole && (low > 16 * p || high < 16 * p + 16);
      if (partly) w = keep(w, splat(0.0f), low - 16 * p, high - 16 * p);
      total = total + w;
      if constexpr (Scaled) {
        w = w * load(v_scales[p]);
        if (partly) w = keep(w, splat(0.0f), low - 16 * p, high - 16 * p);
        total = fma(w, splat(0.0f), total);  // NaN, if the scale is
        peak = max(w, peak);
        store(exponents + 16 * p, w);
      } else {
        put_floats(weights + 16 * p, w);
      }
    }
    store(sums, fma(load(sums), splat(fade), total));
    if constexpr (!Scaled) return 1.0f;
    Unit u = unit_of<E>(largest(peak));
    for (int p = first; p < stop; p++)
      put_floats(weights + 16 * p, load(exponents + 16 * p) * splat(u.factor));
    return u.inverse;
  }
};

}  // namespace
