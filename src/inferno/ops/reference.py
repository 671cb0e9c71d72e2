"""Reference implementations, in torch, of the small operators between matrix products and
attention. A kernel provider's ops must agree with them.

Suffixes: T tokens, D any width, H heads, C head dim, R rotated dims (<= C), E rotated pairs (R /
2), I inner width, N rows of a table, V vocabulary; and of routed experts: E experts, K experts of a
token, N pairs of a token and one of its experts (T · K); and of
adapters: S slots, I inputs, R rank, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from inferno.ops.draws import DrawParams, adjust, draw


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / rms(x) · weight over the last dimension, computed in float32 (arXiv:1910.07467). The
    weight has x's dtype or float32; the result has x's."""
    if weight_D.dtype == torch.float32:
        return F.rms_norm(x.float(), weight_D.shape, weight_D, eps).to(x.dtype)
    # Round to x's dtype before applying a weight of that dtype, as in training.
    return F.rms_norm(x.float(), weight_D.shape, None, eps).to(x.dtype) * weight_D


def add_rms_norm(
    x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + delta and its norm."""
    sum_TD = x_TD + delta_TD
    return sum_TD, rms_norm(sum_TD, weight_D, eps)


def add_layer_norm(
    x_TD: Tensor,
    residual_TD: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor | None,
    eps: float,
) -> Tensor:
    """(s - mean(s)) / std(s) · weight + bias over the last dimension of s = x + residual, computed
    in float32 (arXiv:1607.06450). The sum itself may be rounded to x's dtype or not."""
    sum_TD = x_TD if residual_TD is None else x_TD + residual_TD
    return F.layer_norm(sum_TD, weight_D.shape, weight_D, bias_D, eps)


def norm_rope(
    x_THC: Tensor,
    weight_C: Tensor | None,
    eps: float,
    cos_TE: Tensor,
    sin_TE: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """Normalize heads, if there is a weight, and rotate the first R dims of each. Pairs are (i, i +
    R/2) or, if interleaved, (2 i, 2 i + 1)."""
    if weight_C is not None:
        x_THC = rms_norm(x_THC, weight_C, eps)
    rotated = 2 * cos_TE.shape[-1]
    cos_T1E, sin_T1E = cos_TE[:, None], sin_TE[:, None]
    x_THR = x_THC[..., :rotated].float()
    a, b = (
        x_THR.reshape(*x_THR.shape[:-1], -1, 2).unbind(-1)
        if interleaved
        else x_THR.chunk(2, dim=-1)
    )
    turned = (a * cos_T1E - b * sin_T1E, b * cos_T1E + a * sin_T1E)
    out = (torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)).to(
        x_THC.dtype
    )
    return out if rotated == x_THC.shape[-1] else torch.cat([out, x_THC[..., rotated:]], -1)


def silu_mul(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    """silu(gate) · up"""
    return F.silu(gate_TI) * up_TI


def gelu(x_TI: Tensor) -> Tensor:
    """x · (1 + erf(x / √2)) / 2; x may be overwritten.

    In float32 on a CPU it is computed in pieces of powers of two of rows: torch's library (oneDNN)
    keeps a kernel of a megabyte for each shape that it meets, and steps have any number of tokens.
    """
    if x_TI.dtype != torch.float32 or x_TI.device.type != "cpu" or not x_TI.is_contiguous():
        return F.gelu(x_TI)
    first, rows = 0, len(x_TI)
    while first < rows:
        stop = first + (1 << (rows - first).bit_length() - 1)
        torch.ops.aten.gelu_(x_TI[first:stop])
        first = stop
    return x_TI


def gather(table_ND: Tensor, ids_T: Tensor) -> Tensor:
    """Return rows of a table, (T, D)."""
    return F.embedding(ids_T, table_ND)


def argmax(logits_TV: Tensor) -> Tensor:
    """Return each row's best token, the lowest id among equals: -1, for undecided, in rows with NaN
    and in those whose best logit is not finite."""
    if logits_TV.device.type == "cpu" and logits_TV.dtype != torch.float32:
        # A CPU computes the argmax of 16-bit values five times slower than that of float32 copies
        # within its caches.
        rows = max(1, _ROWS_IN_CACHE // logits_TV.shape[1])
        return torch.cat([argmax(part_BV.float()) for part_BV in torch.split(logits_TV, rows)])
    ids_T = logits_TV.argmax(-1)
    best_T = logits_TV.gather(-1, ids_T[:, None])[:, 0]
    return torch.where(best_T.isfinite(), ids_T, -1)


_ROWS_IN_CACHE = 2**20
"""In elements, not bytes."""


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
    """Return each token's experts, best first, and their weights: (T, K) int64 and float32.
    `weight_ED` and the biases are float32.

    The correction bias (arXiv:2408.15664) affects which experts are selected, not their weights:
    see `scores` and `weights`. A token whose logits are not all finite still gets some experts, and
    does not affect other tokens; its weights are NaN if all its logits are."""
    scores_TE = scores(x_TD, weight_ED, bias_E, sigmoid)
    experts_TK = (
        (scores_TE if correction_E is None else scores_TE + correction_E)
        .topk(top_k, dim=-1)
        .indices
    )
    return experts_TK, weights(scores_TE, experts_TK, normalize, scale)


def scores(
    x_TD: Tensor,
    weight_ED: Tensor,
    bias_E: Tensor | None,
    sigmoid: bool,
    linear: Callable[..., Tensor] = F.linear,
) -> Tensor:
    """Return the scores of all experts, (T, E): the softmax of the logits x · weight + bias, or
    their sigmoids, in float32."""
    logits_TE = linear(x_TD.float(), weight_ED, bias_E)
    return logits_TE.sigmoid() if sigmoid else logits_TE.softmax(-1)


def weights(scores_TE: Tensor, experts_TK: Tensor, normalize: bool, scale: float) -> Tensor:
    """Return the weights of the selected experts, (T, K): their scores, divided by their sum if
    `normalize`, times the scale. To the sum 1e-20 is added, as in the models' own code: sigmoids
    of logits below -46 have no weight."""
    weights_TK = scores_TE.gather(1, experts_TK)
    if normalize:
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + 1e-20)
    return weights_TK * scale


def dispatch(experts_TK: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the pairs by expert, then by token. Returns tokens_N (int64), the token of each row;
    starts_E1 (int32), the first row of each expert, then N; places_TK (int64), the row of each
    pair."""
    expert_N, order_N = experts_TK.flatten().sort(stable=True)
    starts_E1 = torch.searchsorted(
        expert_N, torch.arange(num_experts + 1, device=expert_N.device), out_int32=True
    )
    places_N = torch.empty_like(order_N)
    places_N[order_N] = torch.arange(len(order_N), device=order_N.device)
    return order_N // experts_TK.shape[1], starts_E1, places_N.view_as(experts_TK)


def combine(y_ND: Tensor, places_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """Return each token's weighted sum of its rows of y, (T, D), summed in float32 and rounded once
    to y's dtype."""
    y_T1D = torch.bmm(weights_TK[:, None], y_ND[places_TK].float())
    return y_T1D[:, 0].to(y_ND.dtype)


def shrink(x_TI: Tensor, down_SRI: Tensor, slots_T: Tensor) -> Tensor:
    """Return each token's product with the first matrix of its adapter, x · down.T, (T, R), in x's
    type or float32; zeros for tokens of slot -1. `slots_T` is int64."""
    slots, rank, inputs = down_SRI.shape
    own_T = slots_T.clamp(min=0)
    if slots > _MASKED:
        size = _looked_up(rank * inputs)
        chunks = zip(x_TI.split(size), own_T.split(size), strict=True)
        h_TR = torch.cat([torch.bmm(down_SRI[ids], x[..., None])[..., 0] for x, ids in chunks])
    else:
        h_TSR = F.linear(x_TI, down_SRI.view(-1, inputs)).view(-1, slots, rank)
        h_TR = h_TSR.gather(1, own_T[:, None, None].expand(-1, 1, rank))[:, 0]
    # Not a product with 0 or 1: an overflow in one slot would reach the tokens of others as NaN.
    return h_TR.masked_fill((slots_T < 0)[:, None], 0)


_MASKED = 8
"""The most slots whose products are all computed; of more (experts have slots of their own) each
token's matrices are looked up."""


def _looked_up(values: int) -> int:
    """Return the number of tokens whose matrices, of so many values each, are looked up at once."""
    return max(1, (1 << 22) // values)


def expand(y_TO: Tensor, h_TR: Tensor, ups: Sequence[Tensor], slots_T: Tensor) -> Tensor:
    """Return y plus the products of a `shrink` with the second matrices of each token's adapter,
    each (slots, rank, outputs), that stand side by side in y: their ranks in h, their outputs in
    y. A provider may write into y."""
    own_T, deltas, first = slots_T.clamp(min=0), [], 0
    for up_SNO in ups:
        slots, rank, outputs = up_SNO.shape
        h_T1N = h_TR[:, None, first : first + rank].to(up_SNO.dtype)
        first += rank
        if slots > _MASKED:
            size = _looked_up(rank * outputs)
            chunks = zip(h_T1N.split(size), own_T.split(size), strict=True)
            deltas.append(torch.cat([torch.bmm(h, up_SNO[ids])[:, 0] for h, ids in chunks]))
            continue
        spread_TSN = h_T1N.new_zeros(len(h_TR), slots, rank)
        spread_TSN.scatter_(1, own_T[:, None, None].expand(-1, 1, rank), h_T1N)
        deltas.append(spread_TSN.view(-1, slots * rank) @ up_SNO.view(-1, outputs))
    return y_TO + (deltas[0] if len(deltas) == 1 else torch.cat(deltas, -1))


def alone(x: Tensor, sizes: Sequence[int] = ()) -> Tensor:
    """Return what a collective of one rank returns: its own tensor."""
    return x


@frozen(eq=False)
class Ops:
    """One implementation of each op of `contracts.OPS`, `EXPERT_OPS`, `ENCODER_OPS` and
    `ADAPTER_OPS`: torch's, until the loader binds a provider's."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = add_rms_norm
    add_layer_norm: Callable[[Tensor, Tensor | None, Tensor, Tensor | None, float], Tensor] = (
        add_layer_norm
    )
    norm_rope: Callable[..., Tensor] = norm_rope
    silu_mul: Callable[[Tensor, Tensor], Tensor] = silu_mul
    gelu: Callable[[Tensor], Tensor] = gelu
    gather: Callable[[Tensor, Tensor], Tensor] = gather
    argmax: Callable[[Tensor], Tensor] = argmax
    adjust: Callable[..., Tensor] = adjust
    draw: Callable[[Tensor, DrawParams | None, Tensor | None], Tensor] = draw
    route: Callable[..., tuple[Tensor, Tensor]] = route
    dispatch: Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]] = dispatch
    combine: Callable[[Tensor, Tensor, Tensor], Tensor] = combine
    shrink: Callable[[Tensor, Tensor, Tensor], Tensor] = shrink
    expand: Callable[[Tensor, Tensor, Sequence[Tensor], Tensor], Tensor] = expand
    all_reduce: Callable[[Tensor], Tensor] = alone
    """The sum of all ranks' tensors, in the order of the ranks. May overwrite its argument."""
    all_gather: Callable[[Tensor, Sequence[int]], Tensor] = alone
    """(x, widths) -> all ranks' tensors side by side, where the last dimension has these sizes."""


TORCH = Ops()
