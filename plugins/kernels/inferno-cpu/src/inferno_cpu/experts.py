"""What surrounds the matrices of a mixture of experts, as `inferno.nn.ops` means it: one native
call each.

Suffixes: T tokens, D hidden, E experts, K experts of a token, N pairs of a token and an expert (T ·
K).
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferno_cpu import _native
from inferno_cpu.elementwise import DTYPES


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
    """Each token's experts, best first, the lower id first among equals, and their weights: (T, K)
    int64 and float32. `weight_ED` and the biases are float32.

    Logits are x_TD @ weight_ED.T + bias_E in float32; scores their softmax, or each its own
    sigmoid. The `correction_E` counts for the choice and not for the weights. Weights sum to 1 if
    they are normalized, and are multiplied by `scale` then. A token whose logits are not all finite
    has the first experts at weights of NaN."""
    x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
    weight_ED = weight_ED.contiguous()
    tokens, width = x_TD.shape
    experts_TK = torch.empty(tokens, top_k, dtype=torch.int64)
    weights_TK = torch.empty(tokens, top_k, dtype=torch.float32)
    biases = (0 if bias is None else bias.data_ptr() for bias in (bias_E, correction_E))
    _native.route(
        DTYPES[x_TD.dtype],
        x_TD.data_ptr(),
        x_TD.stride(0),
        weight_ED.data_ptr(),
        *biases,
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
    """Pairs sorted by expert, those of one expert by token: tokens_N (int64), the token of each
    row; starts_E1 (int32), where each expert's rows begin, and N; places_TK (int64), the row of
    each pair. Raises IndexError for an expert that there is not."""
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
    """Each token's sum of its rows of y, weighted: (T, D), summed in float32 and rounded once to
    y's type. Places (int64) are those of `dispatch`, weights float32."""
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
