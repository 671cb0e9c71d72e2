// Routing tokens to experts. Compiled once for each instruction set.
#include "experts.hpp"

#include "parallel.hpp"
#include "scratch.hpp"
#include "simd.hpp"

namespace {

constexpr int64_t kGrain = 16384;  // numbers a thread gets at least
constexpr int kTogether = 4;       // experts whose products with a token are summed side by side
constexpr int64_t kTokens = 64;    // that a thread multiplies by these at a time
constexpr int64_t kSlice = 512;    // tokens widened at a time

INL int64_t rows_of(int64_t size) { return (kGrain + size - 1) / size; }
INL int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// ---- logits -----------------------------------------------------------------------------------------------------------

// D numbers as float32.
template <class A>
void widen(const A* x, int64_t D, float* to) {
  int64_t i = 0;
  for (; i + 16 <= D; i += 16) store(to + i, load(x + i));
  for (; i < D; i++) to[i] = to_float(x[i]);
}

// The products of one token with kTogether rows; `present` of these exist, the others are the last again.
INL void products(const float* x, const float* weight, int64_t present, int64_t D, float* logits) {
  const float* w[kTogether];
  F32 sums[kTogether];
  UNROLL for (int j = 0; j < kTogether; j++) {
    w[j] = weight + (j < present ? j : present - 1) * D;
    sums[j] = splat(0.0f);
  }
  int64_t i = 0;
  for (; i + 16 <= D; i += 16) {
    F32 v = load(x + i);
    UNROLL for (int j = 0; j < kTogether; j++) sums[j] = fma(load(w[j] + i), v, sums[j]);
  }
  for (int j = 0; j < present; j++) {
    float total = sum(sums[j]);
    for (int64_t k = i; k < D; k++) total += w[j][k] * x[k];
    logits[j] = total;
  }
}

// logits of a token lie padded(E) apart.
template <class A>
void logits_of(const A* x, int64_t x_stride, const float* weight, float* logits, int64_t T, int64_t D, int64_t E) {
  float* wide = (float*)scratch<0>(size_t(T * D) * sizeof(float));
  parallel_for(T, rows_of(D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) widen(x + t * x_stride, D, wide + t * D);
  });
  int64_t across = (E + kTogether - 1) / kTogether, down = (T + kTokens - 1) / kTokens;
  int64_t some = T < kTokens ? T : kTokens;
  parallel_for(across * down, rows_of(kTogether * D * some), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      int64_t e = i % across * kTogether, t = i / across * kTokens, last = t + kTokens < T ? t + kTokens : T;
      for (; t < last; t++)
        products(wide + t * D, weight + e * D, E - e < kTogether ? E - e : kTogether, D, logits + t * padded(E) + e);
    }
  });
}

// ---- the choice -------------------------------------------------------------------------------------------------------

// From logits to scores, in place; n is whole vectors, filled up with -inf. False if a logit is not finite.
bool score(float* logits, const float* bias, const Routing& routing, int64_t E) {
  const float least = -__builtin_inff();
  int64_t n = padded(E);
  float greatest = least;
  bool finite = true;
  for (int64_t e = 0; e < E; e++) {
    if (bias) logits[e] += bias[e];
    finite = finite && logits[e] - logits[e] == 0.0f;
    greatest = logits[e] > greatest ? logits[e] : greatest;
  }
  for (int64_t e = E; e < n; e++) logits[e] = least;
  if (!finite) return false;
  F32 total = splat(0.0f);
  for (int64_t e = 0; e < n; e += 16) {
    if (routing.sigmoid) {
      store(logits + e, splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - load(logits + e))));
    } else {
      store(logits + e, exp(load(logits + e) - splat(greatest)));
      if (e + 16 <= E) total = total + load(logits + e);
    }
  }
  if (routing.sigmoid) return true;
  float whole = sum(total);
  for (int64_t e = E / 16 * 16; e < E; e++) whole += logits[e];
  for (int64_t e = 0; e < n; e += 16) store(logits + e, load(logits + e) / splat(whole));
  return true;
}

// The K greatest of n keys (whole vectors), the first among equals; keys that were taken become NaN.
void greatest_of(float* keys, int64_t n, int64_t K, int64_t* ids) {
  for (int64_t k = 0; k < K; k++) {
    F32 top = splat(-__builtin_inff());
    for (int64_t e = 0; e < n; e += 16) top = max(load(keys + e), top);  // max(a, b) is b where either is NaN
    float best = largest(top);
    int64_t e = 0;
    while (e < n - 1 && keys[e] != best) e++;
    ids[k] = e;
    keys[e] = __builtin_nanf("");
  }
}

template <class A>
void route_of(const A* x, int64_t x_stride, const float* weight, const float* bias, const float* correction, const Routing& routing,
              int64_t* experts_TK, float* weights_TK, int64_t T, int64_t D, int64_t E, int64_t K) {
  int64_t n = padded(E);
  float* logits = (float*)scratch<1>(size_t(2 * T * n) * sizeof(float));
  logits_of(x, x_stride, weight, logits, T, D, E);
  parallel_for(T, rows_of(E * (K + 8)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      float *scores = logits + t * n, *keys = logits + (T + t) * n, *weights = weights_TK + t * K;
      int64_t* experts = experts_TK + t * K;
      if (!score(scores, bias, routing, E)) {
        for (int64_t k = 0; k < K; k++) experts[k] = k, weights[k] = __builtin_nanf("");
        continue;
      }
      for (int64_t e = 0; e < n; e++) keys[e] = e < E ? (correction ? scores[e] + correction[e] : scores[e]) : -__builtin_inff();
      greatest_of(keys, n, K, experts);
      float total = 0.0f, factor = routing.scale;
      for (int64_t k = 0; k < K; k++) total += weights[k] = scores[experts[k]];
      if (routing.normalize) factor /= total > __FLT_MIN__ ? total : __FLT_MIN__;
      for (int64_t k = 0; k < K; k++) weights[k] *= factor;
    }
  });
}

void route(int dtype, const void* x, int64_t x_stride, const float* weight, const float* bias, const float* correction,
           const Routing& routing, int64_t* experts_TK, float* weights_TK, int64_t T, int64_t D, int64_t E, int64_t K) {
  with_type(dtype, [&](auto number) {
    for (int64_t t = 0; t < T; t += kSlice)
      route_of((const decltype(number)*)x + t * x_stride, x_stride, weight, bias, correction, routing, experts_TK + t * K,
               weights_TK + t * K, T - t < kSlice ? T - t : kSlice, D, E, K);
  });
}

// ---- rows by expert ---------------------------------------------------------------------------------------------------

bool dispatch(const int64_t* experts_TK, int64_t* tokens_N, int32_t* starts_E1, int64_t* places_TK, int64_t T, int64_t E, int64_t K) {
  int64_t* next = (int64_t*)scratch<0>(size_t(E + 1) * sizeof(int64_t));
  for (int64_t e = 0; e <= E; e++) next[e] = 0;
  for (int64_t i = 0; i < T * K; i++) {
    if (experts_TK[i] < 0 || experts_TK[i] >= E) return false;
    next[experts_TK[i] + 1]++;
  }
  for (int64_t e = 0; e <= E; e++) {
    if (e) next[e] += next[e - 1];
    starts_E1[e] = int32_t(next[e]);
  }
  for (int64_t i = 0; i < T * K; i++) {
    int64_t place = next[experts_TK[i]]++;
    tokens_N[place] = i / K;
    places_TK[i] = place;
  }
  return true;
}

template <class A>
void sum_of(const A* y, const int64_t* places, const float* weights, A* out, int64_t D, int64_t K, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + 16 <= end; i += 16) {
    F32 total = splat(0.0f);
    for (int64_t k = 0; k < K; k++) total = fma(load(y + places[k] * D + i), splat(weights[k]), total);
    store(out + i, total);
  }
  for (; i < end; i++) {
    float total = 0.0f;
    for (int64_t k = 0; k < K; k++) total += to_float(y[places[k] * D + i]) * weights[k];
    from_float(out + i, total);
  }
}

void combine(int dtype, const void* y, const int64_t* places_TK, const float* weights_TK, void* out, int64_t T, int64_t D, int64_t K) {
  constexpr int64_t kPiece = 1024;
  int64_t pieces = (D + kPiece - 1) / kPiece;
  with_type(dtype, [&](auto number) {
    using A = decltype(number);
    parallel_for(T * pieces, rows_of(kPiece * K), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        int64_t t = i / pieces, at = i % pieces * kPiece;
        sum_of((const A*)y, places_TK + t * K, weights_TK + t * K, (A*)out + t * D, D, K, at, at + kPiece < D ? at + kPiece : D);
      }
    });
  });
}

}  // namespace

extern const Experts INFERNO_EXPORT(experts);
const Experts INFERNO_EXPORT(experts) = {route, dispatch, combine};
