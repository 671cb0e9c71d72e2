"""Drawing tokens: every row by its own request's parameters, all rows at once.

A draw depends on the row's logits, its own parameters and history, its seed and its position, on
nothing else. Two things make that exact rather than nearly so. The uniform number is a hash of
(seed, position), not the next one of a stream. And probabilities are integers (`_masses`): their
sums are the same in any order, so no batch shape, no thread and no padding can move a draw across a
boundary. Equally likely tokens rank by id, as in argmax.

A draw first takes a short way that may answer "undecided" (-1): the nucleus was wider than the
candidates looked at, or the logits were not finite. Those rows, rare, are drawn again from more
candidates, at last from a full sort. So a step synchronises with the device once, and nothing that
a model puts out can stop the engine: NaN counts as -inf, +inf as the largest finite number, and
where bias and `min_tokens` leave no token at all, the model's own most likely one is taken, or
token 0.

Suffixes: S logits rows of a step, B those drawn together, V vocabulary, K candidates, N blocks, R
resident rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from inferno.core.sampling.state import UNIFORM_BITS, Kind, Row, Tally
from inferno.core.sampling_params import SamplingParams
from inferno.core.types import Logprobs, Request, Sampled
from inferno.nn import ops

_UNDECIDED = -1
_UNIT = 2.0**40
"""Mass of the most likely token. Tokens 2**40 times less likely weigh nothing; 2**22 tokens fit
into int64."""
_BLOCK = 128
"""Masses summed at once; divides the common vocabulary sizes, others are padded."""
_MANY = 4096
"""Candidates looked at the second time; the third time it is the vocabulary."""
_TEMPERATURE, _MIN_P, _REPETITION, _FREQUENCY, _PRESENCE = range(5)


class Sampler:
    """Resident sampling state, one row per running sequence, and the draw."""

    def __init__(
        self,
        num_rows: int,
        vocab_size: int,
        *,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        argmax: Callable[[Tensor], Tensor] = ops.argmax,
    ) -> None:
        """`seed` makes the draws of requests without a seed repeatable: they get theirs in order of
        admission."""
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._argmax = argmax
        self._seeds = random.Random(seed)
        self._rows: dict[int, Row] = {}
        self._floats_RP = torch.ones(num_rows, 5, device=self._device)
        self._top_k_R = torch.zeros(num_rows, dtype=torch.int64, device=self._device)
        self._top_p_R = torch.zeros(num_rows, dtype=torch.int64, device=self._device)
        self._generated = Tally(num_rows, vocab_size, self._device)
        self._recent = Tally(num_rows, vocab_size, self._device)
        # On a CPU, temporaries that leave its caches cost more than the arithmetic on them (6
        # times, measured).
        self._rows_at_once = max(1, 2 ** (20 if self._device.type == "cpu" else 24) // vocab_size)

    @torch.inference_mode()
    def admit(self, row: int, request: Request, token_ids: Sequence[int]) -> None:
        """The request's sequence takes the row; what the row held is gone.

        `token_ids` is all that is known: the prompt and, after a preemption, the output so far. The
        request must have passed `check`.
        """
        params = request.params
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        state = Row.of(
            request, self._vocab_size, self._device, seed, len(token_ids) - len(request.token_ids)
        )
        self._rows[row] = state
        if state.counted:
            self._generated.fill(row, token_ids[len(request.token_ids) :])
        if state.window:
            recent = token_ids if state.window < 0 else token_ids[-state.window :]
            state.recent.extend(recent if state.window > 0 else ())
            self._recent.fill(row, recent)
        if state.kind is not Kind.GREEDY or state.counted or state.window:
            self._write(row, params)

    def _write(self, row: int, params: SamplingParams) -> None:
        temperature = min(
            max(params.temperature, 1e-30), 1e30
        )  # float32 neither overflows nor divides by zero
        floats = [temperature, params.min_p, params.repetition_penalty, params.frequency_penalty]
        self._floats_RP[row] = torch.tensor([*floats, params.presence_penalty])
        self._top_k_R[row] = (
            params.top_k if 0 < params.top_k < self._vocab_size else self._vocab_size
        )
        self._top_p_R[row] = int(params.top_p * 2**UNIFORM_BITS)

    @torch.inference_mode()
    def sample(self, logits_SV: Tensor, rows: Sequence[int]) -> Sampled:
        """Draw one token per logits row; `rows[i]` is row i's resident row, each named once.

        Counts the tokens as generated. Does not change the logits.
        """
        states = [self._rows[row] for row in rows]
        if all(state.plain for state in states):
            token_ids = self._argmax(logits_SV).tolist()
        else:
            token_ids = self._draw(logits_SV, rows, states).tolist()
        for look_at in (_MANY, self._vocab_size):
            again = [i for i, token_id in enumerate(token_ids) if token_id == _UNDECIDED]
            if not again:
                break
            x_BV = _finite(logits_SV[again])
            ids_B = self._draw(x_BV, [rows[i] for i in again], [states[i] for i in again], look_at)
            if look_at == self._vocab_size:
                ids_B = torch.where(ids_B == _UNDECIDED, x_BV.argmax(-1), ids_B)
            for i, token_id in zip(again, ids_B.tolist(), strict=True):
                token_ids[i] = token_id
        self._count(rows, states, token_ids)
        return Sampled(token_ids, _wanted_logprobs(logits_SV, states, token_ids))

    def _draw(
        self, logits_SV: Tensor, rows: Sequence[int], states: Sequence[Row], look_at: int = 0
    ) -> Tensor:
        """Token ids, (S,), or _UNDECIDED. `look_at` is the least number of candidates."""
        host = torch.tensor([rows, [state.uniform() for state in states]], device=self._device)
        rows_S, uniform_S = host.unbind()
        ids_S = torch.empty_like(rows_S)
        for (kind, width), part in self._parts(states):
            at = _index(part, self._device)
            rows_B, mine = rows_S[at], [states[i] for i in part]
            x_BV = self._adjusted(logits_SV[at], rows_B, mine)
            if kind is Kind.GREEDY:
                ids_S[at] = self._argmax(x_BV)
                continue
            floats_BP = self._floats_RP[rows_B]
            temperature_B1, min_p_B1 = floats_BP[:, _TEMPERATURE, None], floats_BP[:, _MIN_P, None]
            if kind is Kind.OPEN:
                open_min_p = min_p_B1 if any(state.min_p for state in mine) else None
                ids_S[at] = _draw_open(x_BV, temperature_B1, open_min_p, uniform_S[at])
                continue
            best_BK, ids_BK = _best_first(x_BV, max(width, look_at))
            total_B = None
            if kind is Kind.TOP_P:
                total_B = _masses(x_BV, best_BK[:, :1], temperature_B1).sum(-1)
            kept_BK = _kept(
                best_BK,
                self._top_k_R[rows_B],
                self._top_p_R[rows_B],
                total_B,
                temperature_B1,
                min_p_B1,
            )
            ids_S[at] = _draw_kept(
                best_BK, ids_BK, kept_BK, uniform_S[at], complete=ids_BK.shape[1] == x_BV.shape[1]
            )
        return ids_S

    def _parts(self, states: Sequence[Row]) -> Iterator[tuple[tuple[Kind, int], list[int]]]:
        """The positions that are drawn the same way, as many at once as is good."""
        groups: dict[tuple[Kind, int], list[int]] = {}
        for i, state in enumerate(states):
            groups.setdefault((state.kind, state.width), []).append(i)
        for way, members in groups.items():
            for start in range(0, len(members), self._rows_at_once):
                yield way, members[start : start + self._rows_at_once]

    def _adjusted(self, x_BV: Tensor, rows_B: Tensor, states: Sequence[Row]) -> Tensor:
        """Penalties, bias, `min_tokens`: on a float32 copy if one of these rows asks for any."""
        if not any(state.adjusted for state in states):
            return x_BV
        x_BV = x_BV.to(torch.float32, copy=True)
        if repeated := [i for i, state in enumerate(states) if state.window]:
            at = _index(repeated, self._device)
            x, penalty = x_BV[at], self._floats_RP[rows_B[at], _REPETITION, None]
            penalised = torch.where(x > 0, x / penalty, x * penalty)
            x_BV[at] = torch.where(self._recent.of(rows_B[at]) > 0, penalised, x)
        if counted := [i for i, state in enumerate(states) if state.counted]:
            at = _index(counted, self._device)
            count, floats = self._generated.of(rows_B[at]), self._floats_RP[rows_B[at]]
            x_BV[at] -= (
                count * floats[:, _FREQUENCY, None] + (count > 0) * floats[:, _PRESENCE, None]
            )
        for x_V, state in zip(x_BV.unbind(), states, strict=True):
            if state.bias is not None:
                x_V.index_add_(0, *state.bias)
            if state.forbidden is not None:  # last, so that nothing can bring an end token back
                x_V.index_fill_(0, state.forbidden, -math.inf)
        return x_BV

    def _count(self, rows: Sequence[int], states: Sequence[Row], token_ids: Sequence[int]) -> None:
        generated: list[tuple[int, int, int]] = []
        recent: list[tuple[int, int, int]] = []
        for row, state, token_id in zip(rows, states, token_ids, strict=True):
            if state.plain:
                continue
            state.advance()
            if state.counted:
                generated.append((row, token_id, 1))
            if state.window:
                recent.append((row, token_id, 1))
            if state.window > 0:
                state.recent.append(token_id)
                if len(state.recent) > state.window:
                    recent.append((row, state.recent.popleft(), -1))
        self._generated.add(generated)
        self._recent.add(recent)


# --- the draw -------------------------------------------------------------------------------------


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """floor(whole * part / 2**31), exactly; below `whole` if `part` is below 2**31."""
    high: Tensor = part * (whole >> UNIFORM_BITS)
    low: Tensor = (part * (whole & (2**UNIFORM_BITS - 1))) >> UNIFORM_BITS
    return high + low


def _finite(x_BV: Tensor) -> Tensor:
    return torch.nan_to_num(
        x_BV.float(), nan=-math.inf, posinf=torch.finfo(torch.float32).max, neginf=-math.inf
    )


def _relative(x_BV: Tensor, best_B1: Tensor, temperature_B1: Tensor) -> Tensor:
    """Probabilities relative to the best token's. A new tensor."""
    return x_BV.float().sub(best_B1.float()).div_(temperature_B1).exp_()


def _masses(
    x_BV: Tensor, best_B1: Tensor, temperature_B1: Tensor, min_p_B1: Tensor | None = None
) -> Tensor:
    """Probabilities as integers, not normalised: the best token's is _UNIT."""
    p_BV = _relative(x_BV, best_B1, temperature_B1)
    if min_p_B1 is not None:
        p_BV.masked_fill_(p_BV < min_p_B1, 0)
    return p_BV.mul_(_UNIT).long()


def _pick(mass_BK: Tensor, target_B: Tensor) -> Tensor:
    """The first index whose cumulative mass exceeds the target: never one without mass."""
    return (mass_BK.cumsum(-1) <= target_B[:, None]).sum(-1).clamp_(max=mass_BK.shape[-1] - 1)


def _draw_open(
    x_BV: Tensor, temperature_B1: Tensor, min_p_B1: Tensor | None, uniform_B: Tensor
) -> Tensor:
    """A token of the whole vocabulary: first its block, then the token in the block."""
    best_B1 = x_BV.amax(-1, keepdim=True)
    mass_BV = _masses(x_BV, best_B1, temperature_B1, min_p_B1)
    if padding := -mass_BV.shape[1] % _BLOCK:
        mass_BV = torch.nn.functional.pad(mass_BV, (0, padding))
    blocks_BNK = mass_BV.view(len(mass_BV), -1, _BLOCK)
    block_BN = blocks_BNK.sum(-1)
    target_B = _share(uniform_B, block_BN.sum(-1))
    block_B = _pick(block_BN, target_B)
    before_B = (block_BN.cumsum(-1) - block_BN).gather(-1, block_B[:, None])[:, 0]
    mass_BK = blocks_BNK[torch.arange(len(block_B), device=block_B.device), block_B]
    ids_B = block_B * _BLOCK + _pick(mass_BK, target_B - before_B)
    return torch.where(best_B1[:, 0].isfinite(), ids_B, _UNDECIDED)


def _best_first(x_BV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values and their ids, best first, equals by id.

    Which of several tokens equal to the last one are among them is not defined, unless that is all
    of the vocabulary.
    """
    if count >= x_BV.shape[1]:
        best_BK, ids_BK = x_BV.sort(dim=-1, descending=True, stable=True)
        return best_BK, ids_BK
    best_BK, ids_BK = x_BV.topk(count)
    ids_BK, order_BK = ids_BK.sort(-1)
    best_BK, order_BK = best_BK.gather(-1, order_BK).sort(dim=-1, descending=True, stable=True)
    return best_BK, ids_BK.gather(-1, order_BK)


def _kept(
    best_BK: Tensor,
    top_k_B: Tensor,
    top_p_B: Tensor,
    total_B: Tensor | None,
    temperature_B1: Tensor,
    min_p_B1: Tensor,
) -> Tensor:
    """Masses of the candidates that `top_k`, then `top_p` (of what is left), then `min_p` keep: a
    leading part.

    `total_B` is the mass that `top_p` is a share of; None for that of the `top_k`.
    """
    p_BK = _relative(best_BK, best_BK[:, :1], temperature_B1)
    mass_BK = (p_BK * _UNIT).long()
    mass_BK.masked_fill_(
        torch.arange(best_BK.shape[1], device=best_BK.device) >= top_k_B[:, None], 0
    )
    sum_BK = mass_BK.cumsum(-1)
    enough_B = _share(top_p_B, sum_BK[:, -1] if total_B is None else total_B).clamp_(min=1)
    return mass_BK.masked_fill_((sum_BK - mass_BK >= enough_B[:, None]) | (p_BK < min_p_B1), 0)


def _draw_kept(
    best_BK: Tensor, ids_BK: Tensor, kept_BK: Tensor, uniform_B: Tensor, *, complete: bool
) -> Tensor:
    """A token of those kept. Undecided where the candidates may not be all that should have been
    kept."""
    index_B = _pick(kept_BK, _share(uniform_B, kept_BK.sum(-1)))
    ids_B = ids_BK.gather(-1, index_B[:, None])[:, 0]
    sure_B = best_BK[:, 0].isfinite()
    if not complete:
        last_B = (kept_BK > 0).sum(-1).sub_(1).clamp_(min=0)
        sure_B &= best_BK.gather(-1, last_B[:, None])[:, 0] > best_BK[:, -1]
    return torch.where(sure_B, ids_B, _UNDECIDED)


def _index(positions: Sequence[int], device: torch.device) -> slice | Tensor:
    """An index of these ascending positions: a slice, which copies nothing, if there is no gap."""
    if positions[-1] - positions[0] + 1 == len(positions):
        return slice(positions[0], positions[-1] + 1)
    return torch.tensor(positions, device=device)


# --- log-probabilities ----------------------------------------------------------------------------


def logprobs_of(logits_SV: Tensor, token_ids: Sequence[int], top: int) -> list[Logprobs]:
    """Each row's token under the row's own distribution, and the `top` most likely ones. NaN counts
    as -inf."""
    found: list[Logprobs] = []
    for start in range(
        0, len(token_ids), 16
    ):  # a float32 copy of a long prompt's logits would not fit
        part = token_ids[start : start + 16]
        x_SV = _finite(logits_SV[start : start + 16])
        norm_S1 = x_SV.logsumexp(-1, keepdim=True)
        x_S1 = x_SV.gather(-1, torch.tensor(part, device=x_SV.device)[:, None])
        rank_S = (x_SV > x_S1).sum(-1) + 1
        best_SK, ids_SK = _best_first(x_SV, min(top, x_SV.shape[1]))
        found += map(
            _logprobs,
            part,
            _log(x_S1 - norm_S1),
            rank_S.tolist(),
            ids_SK.tolist(),
            _log(best_SK - norm_S1),
        )
    return found


def _log(difference: Tensor) -> list[list[float]]:
    """To the host; a row without any likely token (-inf - -inf) has likelihoods of nothing."""
    values: list[list[float]] = difference.masked_fill(difference.isnan(), -math.inf).tolist()
    return values


def _logprobs(
    token_id: int, logprob: list[float], rank: int, ids: list[int], best: list[float]
) -> Logprobs:
    return Logprobs(token_id, logprob[0], rank, tuple(zip(ids, best, strict=True)))


def _wanted_logprobs(
    logits_SV: Tensor, states: Sequence[Row], token_ids: Sequence[int]
) -> dict[int, Logprobs]:
    asked = sorted(
        (state.logprobs, i) for i, state in enumerate(states) if state.logprobs is not None
    )
    wanted: dict[int, Logprobs] = {}
    for top, pairs in groupby(asked, key=lambda pair: pair[0]):
        part = [i for _, i in pairs]
        logits_BV = logits_SV[_index(part, logits_SV.device)]
        wanted.update(
            zip(part, logprobs_of(logits_BV, [token_ids[i] for i in part], top), strict=True)
        )
    return wanted
