"""Routing, sorting and summing of a mixture of experts, as defined by `inferno.ops`: one native
call each.

Suffixes: T tokens, D hidden, E experts, K experts of a token, N pairs of a token and an expert (T ·
K).
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferno_cpu import _native
from inferno_cpu.dtypes import DTYPES


def route(
    x_TD: Tensor,
    weight_ED: Tensor,
    bias_E: Tensor | None,
    correction_E: Tensor | None,
    top_k: int,
    sigmoid: bool,
    normalize: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the experts of each token (T, K; int64) and their weights (T, K; float32), highest
    score first, the lower id first among equals. `weight_ED` and the biases are float32.

    Logits are x_TD @ weight_ED.T + bias_E in float32; scores are their softmax or sigmoids.
    `correction_E` is added to the scores for the choice only. Weights are the scores, normalized to
    sum to 1 if asked, then multiplied by `scale`. A token with a logit that is not finite gets the
    first experts with weights of NaN."""
    x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
    weight_ED = weight_ED.contiguous()
    tokens, width = x_TD.shape
    experts_TK = torch.empty(tokens, top_k, dtype=torch.int64)
    weights_TK = torch.empty(tokens, top_k, dtype=torch.float32)
    _native.route(
        DTYPES[x_TD.dtype],
        x_TD.data_ptr(),
        x_TD.stride(0),
        weight_ED.data_ptr(),
        0 if bias_E is None else bias_E.data_ptr(),
        0 if correction_E is None else correction_E.data_ptr(),
        sigmoid,
        normalize,
        scale,
        experts_TK.data_ptr(),
        weights_TK.data_ptr(),
        tokens,
        width,
        len(weight_ED),
        top_k,
    )
    return experts_TK, weights_TK


def dispatch(experts_TK: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort pairs of token and expert by expert, then by token. Raises IndexError for an expert id
    out of range.

    Returns tokens_N (int64), the token of each row; starts_E1 (int32), the first row of each expert
    and N; places_TK (int64), the row of each pair."""
    experts_TK = experts_TK.contiguous()
    tokens_N = torch.empty(experts_TK.numel(), dtype=torch.int64)
    starts_E1 = torch.empty(num_experts + 1, dtype=torch.int32)
    places_TK = torch.empty(experts_TK.shape, dtype=torch.int64)
    tokens, top_k = experts_TK.shape
    _native.dispatch(
        experts_TK.data_ptr(),
        tokens_N.data_ptr(),
        starts_E1.data_ptr(),
        places_TK.data_ptr(),
        tokens,
        num_experts,
        top_k,
    )
    return tokens_N, starts_E1, places_TK


def combine(y_ND: Tensor, places_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """Return the weighted sum of each token's rows of y: (T, D), summed in float32 and rounded once
    to y's type. Places (int64) come from `dispatch`; weights are float32."""
    y_ND, places_TK, weights_TK = y_ND.contiguous(), places_TK.contiguous(), weights_TK.contiguous()
    (tokens, top_k), width = places_TK.shape, y_ND.shape[1]
    out_TD = torch.empty(tokens, width, dtype=y_ND.dtype)
    _native.combine(
        DTYPES[y_ND.dtype],
        y_ND.data_ptr(),
        places_TK.data_ptr(),
        weights_TK.data_ptr(),
        out_TD.data_ptr(),
        tokens,
        width,
        top_k,
    )
    return out_TD
