"""The ops of routed experts, as `inferno.ops` defines them, and products with dense experts. No
value returns to the host.

Suffixes: T tokens, D any width, E experts, K experts of a token, N pairs of a token and one of its
experts, I columns, O rows of a matrix.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from inferno.nn import Dense, Weight
from inferno.nn.weight import with_biases
from inferno_triton import chips, linear, mixture
from inferno_triton.products import dense_rows, row_blocks
from inferno_triton.tiles import grouped_of

_TOKENS = 8
"""Tokens whose experts a program selects."""
_PAIRS = 1024
"""Pairs that a program sorts at once."""
_WIDTH = 1024
"""Maximum number of elements of a row that a program sums."""


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
    """Return each token's experts and their weights, (T, K), int64 and float32. The best expert is
    first; among equals, the lower id."""
    logits_TE = F.linear(x_TD.float(), weight_ED, bias_E)
    T, E = logits_TE.shape
    experts_TK = logits_TE.new_empty(T, top_k, dtype=torch.int64)
    weights_TK = logits_TE.new_empty(T, top_k)
    if T:
        block = min(_TOKENS, triton.next_power_of_2(T))
        mixture.select[(triton.cdiv(T, block),)](
            logits_TE,
            logits_TE if correction_E is None else correction_E,
            experts_TK,
            weights_TK,
            T,
            scale,
            E=E,
            EP=triton.next_power_of_2(E),
            K=top_k,
            KP=triton.next_power_of_2(top_k),
            BT=block,
            SIGMOID=sigmoid,
            NORMALIZE=normalize,
            CORRECTION=correction_E is not None,
            num_warps=min(4, block),
        )
    return experts_TK, weights_TK


def dispatch(experts_TK: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort pairs by expert, then by token: tokens_N, starts_E1 and places_TK."""
    experts_TK, top_k = experts_TK.contiguous(), experts_TK.shape[1]
    N = experts_TK.numel()
    tokens_N, places_TK = experts_TK.new_empty(N), torch.empty_like(experts_TK)
    starts_E1 = experts_TK.new_empty(num_experts + 1, dtype=torch.int32)
    mixture.sort[(num_experts,)](
        experts_TK,
        tokens_N,
        starts_E1,
        places_TK,
        N,
        top_k,
        BN=min(_PAIRS, max(16, triton.next_power_of_2(N))),
    )
    return tokens_N, starts_E1, places_TK


def combine(y_ND: Tensor, places_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """Return each token's weighted sum of its rows of y, (T, D)."""
    (T, K), D = places_TK.shape, y_ND.shape[1]
    y_ND = dense_rows(y_ND)
    out_TD = y_ND.new_empty(T, D)
    if T:
        block = min(_WIDTH, triton.next_power_of_2(D))
        mixture.combine[(T, triton.cdiv(D, block))](
            y_ND,
            places_TK.contiguous(),
            weights_TK.contiguous(),
            out_TD,
            D,
            y_ND.stride(0),
            K=K,
            BD=block,
        )
    return out_TD


class DenseExperts(Weight):
    """Dense matrices of equal shape, stacked."""

    def __init__(self, inner: Dense) -> None:
        super().__init__()
        self.inner, self.shape, self.layout = inner, inner.shape, inner.layout

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.inner.matmul(x_TI, bias_O)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.inner.matmul_float32(x_TI, bias_O)

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.inner.rows(ids_T)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        x_NI = dense_rows(x_NI)
        (N, I), experts = x_NI.shape, len(starts_E1) - 1  # noqa: E741
        outputs = self.shape[0] // experts
        y_NO = x_NI.new_empty(N, outputs)
        if N == 0:
            return y_NO
        tile = grouped_of(chips.chip_at(x_NI.device), -(-N // experts), x_NI.element_size())
        blocks = row_blocks(N, tile.tokens, experts)
        mixture.grouped[(triton.cdiv(outputs, tile.outputs), blocks)](
            x_NI,
            self.inner.data,
            starts_E1,
            y_NO,
            outputs,
            I,
            x_NI.stride(0),
            EXPERTS=experts,
            EP=triton.next_power_of_2(experts),
            BO=tile.outputs,
            BT=tile.tokens,
            BC=tile.columns,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return with_biases(y_NO, starts_E1, bias_O)


def stack(*weights: Weight) -> Weight | None:
    """Stack the matrices of experts. None if they cannot be stacked or have no kernel."""
    if not isinstance(weights[0], Dense):
        return linear.stack(*weights)
    first, *others = weights
    whole = first.concatenate(others) if others else first
    return DenseExperts(whole) if isinstance(whole, Dense) else None
