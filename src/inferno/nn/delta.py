"""The gated delta rule (arXiv:2412.06464), a linear attention whose state is a matrix per head:

    state <- exp(g) · state;  state <- state + k ⊗ beta · (v - k · state);  y = q · state

Prompts are computed in chunks, as products of matrices (arXiv:2406.06484); single tokens as above.
All is float32.

Suffixes: T packed tokens, S sequences, H heads, J query/key heads (H is a multiple), K width of a
key, V width of a value, C chunks, L tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.nn.batch import Batch
from inferno.nn.recurrence import in_turn, over_sequences

CHUNK = 64
"""Tokens of a chunk: work within one grows with its square."""


def gated_delta(
    q_TJK: Tensor,
    k_TJK: Tensor,
    v_THV: Tensor,
    g_TH: Tensor,
    beta_TH: Tensor,
    state_BHKV: Tensor,
    batch: Batch,
) -> tuple[Tensor, Tensor]:
    """Outputs (T, H, V), float32, and each sequence's state after its last token, (S, H, K, V).

    Queries and keys are made unit vectors here, queries divided by sqrt(K) besides. `g_TH` is the
    logarithm of the decay, at most 0; `beta_TH`, from 0 to 1, how much of a value is written. Each
    query/key head serves H / J neighbouring heads. `state_BHKV` are the states of the sequences
    that are no drafts; they begin as zeros. Every sequence has at least one token.
    """
    shared = v_THV.shape[1] // q_TJK.shape[1]
    q_THK, k_THK = (unit(x.float()).repeat_interleave(shared, 1) for x in (q_TJK, k_TJK))
    inputs = (q_THK * q_THK.shape[-1] ** -0.5, k_THK, v_THV.float(), g_TH.float(), beta_TH.float())
    return in_turn(_rule, inputs, state_BHKV.float(), batch)


def _rule(
    inputs: Sequence[Tensor], state_SHKV: Tensor, query_starts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    return over_sequences(inputs, state_SHKV, query_starts, step=_step, scan=_scan)


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1 along the last dimension; zeros stay zeros."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _step(
    q_SHK: Tensor, k_SHK: Tensor, v_SHV: Tensor, g_SH: Tensor, beta_SH: Tensor, state_SHKV: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of each sequence."""
    state_SHKV = state_SHKV * g_SH.exp()[..., None, None]
    known_SHV = (k_SHK[..., None, :] @ state_SHKV)[..., 0, :]
    written_SHV = (v_SHV - known_SHV) * beta_SH[..., None]
    state_SHKV = state_SHKV.addcmul_(k_SHK[..., None], written_SHV[..., None, :])
    return (q_SHK[..., None, :] @ state_SHKV)[..., 0, :], state_SHKV


def _scan(
    q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_1HKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Several tokens of one sequence. What chunks can compute without the state before them, all
    compute at once."""
    length = len(q_THK)
    q_CHLK, k_CHLK, v_CHLV = (in_chunks(x, CHUNK) for x in (q_THK, k_THK, v_THV))
    g_CHL, beta_CHL = in_chunks(g_TH, CHUNK), in_chunks(beta_TH, CHUNK)
    decay_CHLL, grown_CHL, left_CHL = decays(g_CHL)

    # Within a chunk what a token writes depends on what those before it wrote: a triangular system.
    kb_CHLK = k_CHLK * beta_CHL[..., None]
    one_LL = torch.eye(k_CHLK.shape[2], device=k_CHLK.device)
    solved_CHLL = torch.linalg.solve_triangular(
        (kb_CHLK @ k_CHLK.mT) * decay_CHLL, one_LL, upper=False, unitriangular=True
    )
    new_CHLV = solved_CHLL @ (v_CHLV * beta_CHL[..., None])
    known_CHLK = solved_CHLL @ (kb_CHLK * grown_CHL[..., None])
    within_CHLL = (q_CHLK @ k_CHLK.mT) * decay_CHLL
    q_CHLK, k_CHLK = q_CHLK * grown_CHL[..., None], k_CHLK * left_CHL[..., None]

    state_HKV, y_CHLV = state_1HKV[0], torch.empty_like(new_CHLV)
    for c in range(len(q_CHLK)):
        new_HLV = new_CHLV[c] - known_CHLK[c] @ state_HKV
        y_CHLV[c] = q_CHLK[c] @ state_HKV + within_CHLL[c] @ new_HLV
        state_HKV = state_HKV * grown_CHL[c, :, -1, None, None] + k_CHLK[c].mT @ new_HLV
    return y_CHLV.transpose(1, 2).flatten(0, 1)[:length], state_HKV[None]


def in_chunks(x_TH: Tensor, size: int) -> Tensor:
    """(T, H, ...) as (C, H, L, ...), zeros behind the last token. Less than a chunk is one of its
    own length."""
    size = min(size, len(x_TH))
    padding = -len(x_TH) % size
    if padding:
        x_TH = F.pad(x_TH, (0, 0) * (x_TH.ndim - 1) + (0, padding))
    # Dense, as products of matrices copy what is not, each time.
    return x_TH.reshape(-1, size, *x_TH.shape[1:]).transpose(1, 2).contiguous()


def decays(g_CHL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of logarithms of decays, factors: from token j to a later token i of its chunk, (C, H, L, L),
    0 where j is later; from the chunk's beginning to token i and from token i to the chunk's end,
    (C, H, L).

    Sums are float64: their differences, of a few tokens far into a chunk of strong decay, would
    lose digits in float32.
    """
    sums_CHL = g_CHL.double().cumsum(-1)
    later_LL = torch.ones(g_CHL.shape[-1], g_CHL.shape[-1], dtype=torch.bool, device=g_CHL.device)
    between_CHLL = (sums_CHL[..., :, None] - sums_CHL[..., None, :]).to(g_CHL.dtype)
    decay_CHLL = between_CHLL.masked_fill_(later_LL.triu(1), float("-inf")).exp_()
    left_CHL = sums_CHL[..., -1:] - sums_CHL
    return decay_CHLL, sums_CHL.to(g_CHL.dtype).exp(), left_CHL.to(g_CHL.dtype).exp()
