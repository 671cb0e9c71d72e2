"""Log-probabilities under the model's own distribution.

Suffixes: S rows of logits, K most likely tokens, V vocabulary, N blocks of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from inferno.ops.masses import replace_nonfinite
from inferno.request.requests import Logprobs
from inferno.sampling.draw import index_of, sort_best
from inferno.sampling.state import RowState


def logprobs_of(
    logits_SV: Tensor, token_ids: Sequence[int], top: int, others: Sequence[int] = ()
) -> list[Logprobs]:
    """Score each row's token under the row's own distribution, with the `top` most likely ones, or
    with `others` instead. NaN counts as -inf. A row's values are the same, bit for bit, whatever
    other rows there are."""
    scores: list[Logprobs] = []
    for start in range(0, len(token_ids), 16):  # float32 copies of all would not fit
        part = token_ids[start : start + 16]
        x_SV = replace_nonfinite(logits_SV[start : start + 16])
        max_S1 = x_SV.amax(-1, keepdim=True)
        rest_S1 = _total((x_SV - max_S1).exp_()).log()[:, None]
        x_S1 = x_SV.gather(-1, torch.tensor(part, device=x_SV.device)[:, None])
        rank_S = (x_SV > x_S1).sum(-1) + 1
        if others:
            ids_SK = torch.tensor(others, device=x_SV.device).expand(len(part), -1)
            best_SK = x_SV.gather(-1, ids_SK)
        else:
            best_SK, ids_SK = sort_best(x_SV, min(top, x_SV.shape[1]))
        scores += map(
            _logprobs,
            part,
            _log(x_S1.double() - max_S1.double() - rest_S1),
            rank_S.tolist(),
            ids_SK.tolist(),
            _log(best_SK.double() - max_S1.double() - rest_S1),
        )
    return scores


_BLOCK = 128
"""Values summed in one go: too few for threads to share, so their order does not depend on how many
rows there are. Divides the common vocabulary sizes, others are padded."""


def _total(p_SV: Tensor) -> Tensor:
    """Sum each row, in float64."""
    if padding := -p_SV.shape[1] % _BLOCK:
        p_SV = torch.nn.functional.pad(p_SV, (0, padding))
    total_SN = p_SV.view(len(p_SV), -1, _BLOCK).sum(-1, dtype=torch.float64)
    return total_SN.sum(-1)


def _log(difference: Tensor) -> list[list[float]]:
    """Copy to the host. A row of -inf only gives NaN, which becomes -inf."""
    values: list[list[float]] = difference.masked_fill(difference.isnan(), -math.inf).tolist()
    return values


def _logprobs(
    token_id: int, logprob: list[float], rank: int, ids: list[int], best: list[float]
) -> Logprobs:
    return Logprobs(token_id, logprob[0], rank, tuple(zip(ids, best, strict=True)))


def wanted_logprobs(
    logits_SV: Tensor, states: Sequence[RowState], token_ids: Sequence[int]
) -> dict[int, Logprobs]:
    entries = sorted(
        (state.logprobs, state.logprob_ids, i)
        for i, state in enumerate(states)
        if state.logprobs is not None
    )
    wanted: dict[int, Logprobs] = {}
    for (top, others), rows in groupby(entries, key=lambda row: row[:2]):
        part = [i for *_, i in rows]
        logits_BV = logits_SV[index_of(part, logits_SV.device)]
        scores = logprobs_of(logits_BV, [token_ids[i] for i in part], top, others)
        wanted.update(zip(part, scores, strict=True))
    return wanted
