// What surrounds the matrices of a mixture of experts: which experts a token goes to, its rows sorted by expert, and their sum.
// T tokens, D numbers each, E experts, K of them for a token, N = T * K.
#pragma once
#include <cstdint>

#include "dtype.hpp"

struct Routing {
  bool sigmoid;    // scores are each expert's own; else a softmax over all
  bool normalize;  // weights are divided by their sum
  float scale;     // weights are multiplied by this, at last
};

struct Experts {
  // Logits x_TD @ weight_ED.T (+ bias_E) in float32; the K greatest of their scores (+ correction_E, for the choice alone), the
  // lower id first among equals; the scores of those as weights. A token whose logits are not all finite has the first K experts,
  // at weights of NaN. Biases may be null; K <= E.
  void (*route)(int dtype, const void* x, int64_t x_stride, const float* weight, const float* bias, const float* correction,
                const Routing& routing, int64_t* experts_TK, float* weights_TK, int64_t T, int64_t D, int64_t E, int64_t K);
  // The pairs sorted by expert, those of one expert by token: the token of each row, where each expert's rows begin (E + 1), and
  // the row of each pair. False, and nothing is written whole, if an id is not one of an expert.
  bool (*dispatch)(const int64_t* experts_TK, int64_t* tokens_N, int32_t* starts_E1, int64_t* places_TK, int64_t T, int64_t E,
                   int64_t K);
  // out_TD = the sum over a token's K of weights_TK * y_ND[places_TK], in float32, rounded once.
  void (*combine)(int dtype, const void* y, const int64_t* places_TK, const float* weights_TK, void* out, int64_t T, int64_t D,
                  int64_t K);
};
