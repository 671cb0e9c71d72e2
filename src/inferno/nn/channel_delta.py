"""The delta rule with a decay for each channel of the keys (Kimi delta attention,
arXiv:2510.26692):

    state <- diag(exp(g)) · state;  state <- state + k ⊗ beta · (v - k · state);  y = q · state

In `delta` the decay is one number for all channels. Here each pair of tokens of a chunk has a decay
for each channel. To hold those of all pairs at once would take the memory of the chunk's keys times
the number of its tokens, so prompts are computed in short chunks, row by row. All is float32.

Suffixes: T packed tokens, S sequences, H heads, K width of a key, V width of a value, C chunks, L
tokens of a chunk, I its tokens up to a given one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inferno.nn.batch import Batch
from inferno.nn.delta import in_chunks, unit
from inferno.nn.recurrence import in_turn, over_sequences

CHUNK = 32
"""Tokens of a chunk."""


def channel_gated_delta(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    g_THK: Tensor,
    beta_TH: Tensor,
    state_BHKV: Tensor,
    batch: Batch,
) -> tuple[Tensor, Tensor]:
    """Outputs (T, H, V), float32, and each sequence's state after its last token, (S, H, K, V).

    Queries and keys are made unit vectors here, queries divided by sqrt(K) besides. `g_THK` are the
    logarithms of the decays, at most 0; `beta_TH`, from 0 to 1, how much of a value is written.
    `state_BHKV` are the states of the sequences that are not drafts; they begin as zeros. Every
    sequence has at least one token.
    """
    q_THK, k_THK = unit(q_THK.float()) * q_THK.shape[-1] ** -0.5, unit(k_THK.float())
    inputs = (q_THK, k_THK, v_THV.float(), g_THK.float(), beta_TH.float())
    return in_turn(_rule, inputs, state_BHKV.float(), batch)


def _rule(
    inputs: Sequence[Tensor], state_SHKV: Tensor, query_starts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    return over_sequences(inputs, state_SHKV, query_starts, step=_step, scan=_scan)


def _step(
    q_SHK: Tensor, k_SHK: Tensor, v_SHV: Tensor, g_SHK: Tensor, beta_SH: Tensor, state_SHKV: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of each sequence."""
    state_SHKV = state_SHKV * g_SHK.exp()[..., None]
    known_SHV = (k_SHK[..., None, :] @ state_SHKV)[..., 0, :]
    written_SHV = (v_SHV - known_SHV) * beta_SH[..., None]
    state_SHKV = state_SHKV.addcmul_(k_SHK[..., None], written_SHV[..., None, :])
    return (q_SHK[..., None, :] @ state_SHKV)[..., 0, :], state_SHKV


def _scan(
    q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_THK: Tensor, beta_TH: Tensor, state_1HKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Several tokens of one sequence. What chunks can compute without the state before them, all
    compute at once."""
    length = len(q_THK)
    q_CHLK, k_CHLK, v_CHLV, g_CHLK = (in_chunks(x, CHUNK) for x in (q_THK, k_THK, v_THV, g_THK))
    beta_CHL1 = in_chunks(beta_TH, CHUNK)[..., None]
    kb_CHLK = k_CHLK * beta_CHL1
    # float64: the decay between two tokens, far into a chunk of strong decay, is a small difference
    # of large sums.
    sums_CHLK = g_CHLK.double().cumsum(-2)
    known_CHLL, within_CHLL = _products(kb_CHLK, q_CHLK, k_CHLK, sums_CHLK)

    # Within a chunk what a token writes depends on what those before it wrote: a triangular system.
    one_LL = torch.eye(k_CHLK.shape[2], device=k_CHLK.device)
    solved_CHLL = torch.linalg.solve_triangular(known_CHLL, one_LL, upper=False, unitriangular=True)
    grown_CHLK = sums_CHLK.float().exp()
    new_CHLV = solved_CHLL @ (v_CHLV * beta_CHL1)
    known_CHLK = solved_CHLL @ (kb_CHLK * grown_CHLK)
    q_CHLK = q_CHLK * grown_CHLK
    k_CHLK = k_CHLK * (sums_CHLK[..., -1:, :] - sums_CHLK).float().exp()

    state_HKV, y_CHLV = state_1HKV[0], torch.empty_like(new_CHLV)
    for c in range(len(q_CHLK)):
        new_HLV = new_CHLV[c] - known_CHLK[c] @ state_HKV
        y_CHLV[c] = q_CHLK[c] @ state_HKV + within_CHLL[c] @ new_HLV
        state_HKV = state_HKV * grown_CHLK[c, :, -1, :, None] + k_CHLK[c].mT @ new_HLV
    return y_CHLV.transpose(1, 2).flatten(0, 1)[:length], state_HKV[None]


def _products(
    a_CHLK: Tensor, q_CHLK: Tensor, k_CHLK: Tensor, sums_CHLK: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the products of `a`, and of the queries, with the keys of tokens up to their own,
    which have decayed since, each (C, H, L, L); 0 for later tokens."""
    both_CHLK2 = torch.stack([a_CHLK, q_CHLK], -1)
    products = k_CHLK.new_zeros((2, *k_CHLK.shape[:3], k_CHLK.shape[2]))
    for i in range(k_CHLK.shape[2]):
        upto = slice(0, i + 1)
        since_CHIK = (sums_CHLK[:, :, i, None] - sums_CHLK[:, :, upto]).float().exp_()
        rows_CHI2 = (k_CHLK[:, :, upto] * since_CHIK) @ both_CHLK2[:, :, i]
        products[..., i, upto] = rows_CHI2.movedim(-1, 0)
    return products[0], products[1]
