// Mixture of experts without its matrices: routing, sorting rows by expert, and the weighted sum.
// T tokens of D elements, E experts, K of them for each token, N = T * K.
#pragma once
#include <cstdint>

#include "dtype.hpp"

struct Routing {
  bool sigmoid;    // scores are sigmoids; otherwise a softmax over the experts
  bool normalize;  // weights are divided by their sum
  float scale;     // weights are multiplied by this last
};

struct Experts {
  // Choose the K experts with the highest scores of the logits x_TD @ weight_ED.T (+ bias_E),
  // computed in float32, the lower id first among equals; their weights are their scores.
  // correction_E is added for the choice only. A token with a logit that is not finite gets the
  // first K experts with weights of NaN. bias and correction may be null; K <= E.
  void (*route)(int dtype, const void* x, int64_t x_stride, const float* weight, const float* bias,
                const float* correction, const Routing& routing, int64_t* experts_TK,
                float* weights_TK, int64_t T, int64_t D, int64_t E, int64_t K);
  // Sort the pairs (token, expert) by expert, then by token: tokens_N is the token of each row,
  // starts_E1 the first row of each expert and N, places_TK the row of each pair. Returns false,
  // with incomplete results, if an id is not in 0 .. E - 1.
  bool (*dispatch)(const int64_t* experts_TK, int64_t* tokens_N, int32_t* starts_E1,
                   int64_t* places_TK, int64_t T, int64_t E, int64_t K);
  // out_TD = sum over K of weights_TK * y_ND[places_TK], in float32, rounded once.
  void (*combine)(int dtype, const void* y, const int64_t* places_TK, const float* weights_TK,
                  void* out, int64_t T, int64_t D, int64_t K);
};
