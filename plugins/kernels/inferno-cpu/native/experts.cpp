// Routing tokens to experts. Compiled once for each instruction set.
#include "experts.hpp"

#include "parallel.hpp"
#include "scratch.hpp"
#include "simd.hpp"

namespace {

constexpr int64_t kGrain = 16384;  // minimum elements per thread
constexpr int kExpertsAtOnce = 4;  // experts whose products with a token are summed at once
constexpr int64_t kTokens = 64;    // tokens that a thread multiplies by them at a time
constexpr int64_t kSlice = 512;    // tokens routed at a time

INL int64_t min_rows(int64_t size) { return (kGrain + size - 1) / size; }
INL int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// ---- logits ----

// Convert D elements to float32.
template <class A>
void widen(const A* x, int64_t D, float* to) {
  int64_t i = 0;
  for (; i + 16 <= D; i += 16) store(to + i, load(x + i));
  for (; i < D; i++) to[i] = to_float(x[i]);
}

// The products of one token with kExpertsAtOnce rows. Only the first `present` rows exist; the last
// of them replaces the others.
INL void products(const float* x, const float* weight, int64_t present, int64_t D, float* logits) {
  const float* w[kExpertsAtOnce];
  F32 sums[kExpertsAtOnce];
  UNROLL_FOR (int j = 0; j < kExpertsAtOnce; j++) {
    w[j] = weight + (j < present ? j : present - 1) * D;
    sums[j] = splat(0.0f);
  }
  int64_t i = 0;
  for (; i + 16 <= D; i += 16) {
    F32 v = load(x + i);
    UNROLL_FOR (int j = 0; j < kExpertsAtOnce; j++) sums[j] = fma(load(w[j] + i), v, sums[j]);
  }
  for (int j = 0; j < present; j++) {
    float total = sum(sums[j]);
    for (int64_t k = i; k < D; k++) total += w[j][k] * x[k];
    logits[j] = total;
  }
}

// Logits of a token are padded(E) apart.
template <class A>
void logits_of(const A* x, int64_t x_stride, const float* weight, float* logits, int64_t T,
               int64_t D, int64_t E) {
  float* wide = (float*)scratch<0>(size_t(T * D) * sizeof(float));
  parallel_for(T, min_rows(D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) widen(x + t * x_stride, D, wide + t * D);
  });
  int64_t across = (E + kExpertsAtOnce - 1) / kExpertsAtOnce, down = (T + kTokens - 1) / kTokens;
  int64_t tile_tokens = T < kTokens ? T : kTokens;
  parallel_for(
      across * down, min_rows(kExpertsAtOnce * D * tile_tokens), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
          int64_t e = i % across * kExpertsAtOnce, t = i / across * kTokens,
                  last = t + kTokens < T ? t + kTokens : T;
          for (; t < last; t++)
            products(wide + t * D, weight + e * D, E - e < kExpertsAtOnce ? E - e : kExpertsAtOnce,
                     D, logits + t * padded(E) + e);
        }
      });
}

// ---- the choice ----

// Turn logits into scores in place, padded to whole vectors. Returns false if a logit is not
// finite.
bool score(float* logits, const float* bias, const Routing& routing, int64_t E) {
  const float lowest = -__builtin_inff();
  int64_t n = padded(E);
  float greatest = lowest;
  bool finite = true;
  for (int64_t e = 0; e < E; e++) {
    if (bias) logits[e] += bias[e];
    finite = finite && logits[e] - logits[e] == 0.0f;
    greatest = logits[e] > greatest ? logits[e] : greatest;
  }
  for (int64_t e = E; e < n; e++) logits[e] = lowest;
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
  float denominator = sum(total);
  for (int64_t e = E / 16 * 16; e < E; e++) denominator += logits[e];
  for (int64_t e = 0; e < n; e += 16) store(logits + e, load(logits + e) / splat(denominator));
  return true;
}

// The ids of the K largest of n keys (whole vectors), the lower id first among equals. Overwrites
// the keys taken with NaN.
void top_k_of(float* keys, int64_t n, int64_t K, int64_t* ids) {
  for (int64_t k = 0; k < K; k++) {
    F32 top = splat(-__builtin_inff());
    for (int64_t e = 0; e < n; e += 16)
      top = max(load(keys + e), top);  // max(a, b) is b if either is NaN
    float best = largest(top);
    int64_t e = 0;
    while (e < n - 1 && keys[e] != best) e++;
    ids[k] = e;
    keys[e] = __builtin_nanf("");
  }
}

template <class A>
void route_of(const A* x, int64_t x_stride, const float* weight, const float* bias,
              const float* correction, const Routing& routing, int64_t* experts_TK,
              float* weights_TK, int64_t T, int64_t D, int64_t E, int64_t K) {
  int64_t n = padded(E);
  float* logits = (float*)scratch<1>(size_t(2 * T * n) * sizeof(float));
  logits_of(x, x_stride, weight, logits, T, D, E);
  parallel_for(T, min_rows(E * (K + 8)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      float *scores = logits + t * n, *keys = logits + (T + t) * n, *weights = weights_TK + t * K;
      int64_t* experts = experts_TK + t * K;
      if (!score(scores, bias, routing, E)) {
        for (int64_t k = 0; k < K; k++) experts[k] = k, weights[k] = __builtin_nanf("");
        continue;
      }
      for (int64_t e = 0; e < n; e++)
        keys[e] = e < E ? (correction ? scores[e] + correction[e] : scores[e]) : -__builtin_inff();
      top_k_of(keys, n, K, experts);
      float total = 0.0f, factor = routing.scale;
      for (int64_t k = 0; k < K; k++) total += weights[k] = scores[experts[k]];
      if (routing.normalize) factor /= total + 1e-20f;  // as the models' own code
      for (int64_t k = 0; k < K; k++) weights[k] *= factor;
    }
  });
}

void route(int dtype, const void* x, int64_t x_stride, const float* weight, const float* bias,
           const float* correction, const Routing& routing, int64_t* experts_TK, float* weights_TK,
           int64_t T, int64_t D, int64_t E, int64_t K) {
  with_type(dtype, [&](auto element) {
    for (int64_t t = 0; t < T; t += kSlice)
      route_of((const decltype(element)*)x + t * x_stride, x_stride, weight, bias, correction,
               routing, experts_TK + t * K, weights_TK + t * K, T - t < kSlice ? T - t : kSlice, D,
               E, K);
  });
}

// ---- rows by expert ----

bool dispatch(const int64_t* experts_TK, int64_t* tokens_N, int32_t* starts_E1, int64_t* places_TK,
              int64_t T, int64_t E, int64_t K) {
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
void sum_of(const A* y, const int64_t* places, const float* weights, A* out, int64_t D, int64_t K,
            int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + 16 <= end; i += 16) {
    F32 total = splat(0.0f);
    for (int64_t k = 0; k < K; k++)
      total = fma(load(y + places[k] * D + i), splat(weights[k]), total);
    store(out + i, total);
  }
  for (; i < end; i++) {
    float total = 0.0f;
    for (int64_t k = 0; k < K; k++) total += to_float(y[places[k] * D + i]) * weights[k];
    from_float(out + i, total);
  }
}

void combine(int dtype, const void* y, const int64_t* places_TK, const float* weights_TK, void* out,
             int64_t T, int64_t D, int64_t K) {
  constexpr int64_t kChunk = 1024;
  int64_t chunks = (D + kChunk - 1) / kChunk;
  with_type(dtype, [&](auto element) {
    using A = decltype(element);
    parallel_for(T * chunks, min_rows(kChunk * K), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        int64_t t = i / chunks, at = i % chunks * kChunk;
        sum_of((const A*)y, places_TK + t * K, weights_TK + t * K, (A*)out + t * D, D, K, at,
               at + kChunk < D ? at + kChunk : D);
      }
    });
  });
}

}  // namespace

extern const Experts INFERNO_EXPORT(experts);
const Experts INFERNO_EXPORT(experts) = {route, dispatch, combine};
