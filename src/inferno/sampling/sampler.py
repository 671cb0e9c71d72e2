"""Draws tokens: every row by its own request's parameters, all rows at once.

A draw depends only on the row's logits, parameters, history, seed and position. Two things make
that exact: the uniform number is a hash of (seed, position), not the next one of a stream, and
probabilities are integers (`draw`).

The first attempt may leave a row undecided: the nucleus was wider than the candidates considered,
or the logits were not finite. Those rare rows are drawn again from more candidates, in the end from
a full sort. So a step synchronises with the device once, and no output of a model can stop the
engine: NaN counts as -inf, +inf as the largest finite number, and if bias and `min_tokens` exclude
every token, the model's most likely one is drawn, or token 0. `broken` names the rows whose logits
were not finite: their tokens mean nothing.

Suffixes: S logits rows of a step, B those drawn together, V vocabulary, K candidates, R resident
rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from attrs import frozen
from torch import Tensor

from inferno.constraints import NO_MASKS, Masks
from inferno.constraints.rules import LogitsRules, masked, picked, processed
from inferno.contracts import LogitsProcessor
from inferno.device.staging import sent
from inferno.errors import InfernoError
from inferno.ops.masses import (
    UNDECIDED,
    UNIFORM_BITS,
    draw_full,
    integer_masses,
    replace_nonfinite,
)
from inferno.ops.reference import TORCH, Ops
from inferno.request.requests import Logprobs, Request
from inferno.request.sampling_params import SamplingParams
from inferno.sampling.asked import AskedDraws
from inferno.sampling.best import best_allowed
from inferno.sampling.device import (
    FREQUENCY,
    MIN_P,
    PRESENCE,
    REPETITION,
    TEMPERATURE,
    DeviceDraws,
    Resident,
)
from inferno.sampling.draw import Cut, confirmed, draw_truncated, index_of, sort_best, truncate
from inferno.sampling.finite import are_broken
from inferno.sampling.groups import Draw, drawn_again, draws_of, grouped
from inferno.sampling.logprobs import wanted_logprobs
from inferno.sampling.state import RowState, Strategy, TokenCounts

_SECOND_LOOK = 4096
"""Candidates of the second attempt. The third sorts the whole vocabulary."""


@frozen(eq=False)
class Drawn:
    """One token per logits row."""

    token_ids: list[int]
    logprobs: Mapping[int, Logprobs]
    """By position in `token_ids`, for rows that want them."""


class Sampler:
    """Resident sampling state, one row per running sequence, and the draw. Its caller is in torch's
    inference mode."""

    def __init__(
        self,
        num_rows: int,
        vocab_size: int,
        *,
        device: torch.device | str = "cpu",
        ops: Ops = TORCH,
        processors: Mapping[str, LogitsProcessor] | None = None,
    ) -> None:
        self._processors = processors or {}
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._ops, self._argmax = ops, ops.argmax
        self._rows: dict[int, RowState] = {}
        self._floats_RP = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0]).repeat(num_rows, 1).to(device)
        self._top_k_R = torch.zeros(num_rows, dtype=torch.int64, device=self._device)
        self._top_p_R = torch.zeros(num_rows, dtype=torch.int64, device=self._device)
        self._generated = TokenCounts(num_rows, vocab_size, self._device)
        self._recent = TokenCounts(num_rows, vocab_size, self._device)
        # On a CPU, temporaries that leave its caches cost more than the arithmetic on them (6
        # times, measured).
        self._rows_at_once = max(1, 2 ** (20 if self._device.type == "cpu" else 24) // vocab_size)
        self._written = set[int]()
        """Rows whose parameters are not the neutral ones of the beginning."""
        self._draws: DeviceDraws | None = None
        self._ruled = set[int]()
        """Rows with rules."""
        self.broken = set[int]()
        """Rows whose last logits were not finite."""

    def admit(self, row: int, request: Request, token_ids: Sequence[int]) -> None:
        """Give the row to a request's sequence.

        `token_ids` are the prompt and, after a preemption, the output so far. The request must have
        passed `validate_request`.
        """
        params = request.params
        generated = len(token_ids) - len(request.token_ids)
        output = token_ids[len(request.token_ids) :]
        known, device = self._processors, self._device
        rules = LogitsRules.of(request, output, self._vocab_size, known, device)
        state = RowState.of(request, self._vocab_size, self._device, generated, rules)
        self._rows[row] = state
        self.broken.discard(row)
        (self._ruled.add if rules is not None else self._ruled.discard)(row)
        if state.counts_output:
            self._generated.fill(row, output)
        if state.penalty_window:
            recent = token_ids if state.penalty_window < 0 else token_ids[-state.penalty_window :]
            state.recent.extend(recent if state.penalty_window > 0 else ())
            self._recent.fill(row, recent)
        # What an earlier request left in a row must not change this one's logits.
        if not state.is_plain or row in self._written:
            self._written.add(row)
            self._write(row, params)

    def _write(self, row: int, params: SamplingParams) -> None:
        # Within this range float32 neither overflows nor divides by zero.
        temperature = min(max(params.temperature, 1e-30), 1e30)
        repetition = params.repetition_penalty if params.repeat_last_n else 1.0
        floats = [temperature, params.min_p, repetition, params.frequency_penalty]
        self._floats_RP[row] = sent([*floats, params.presence_penalty], self._device)
        self._top_k_R[row] = (
            params.top_k if 0 < params.top_k < self._vocab_size else self._vocab_size
        )
        self._top_p_R[row] = int(params.top_p * 2**UNIFORM_BITS)

    def sample(
        self, logits_SV: Tensor, rows: Sequence[int], masks: Masks = NO_MASKS, at: int = 0
    ) -> Drawn:
        """Draw one token per logits row; `rows[i]` is row i's resident row, each named once.

        Masks are applied after the bias: those of the token after `at` drafts. Counts the tokens
        as generated. Does not change the logits.
        """
        states = [self._rows[row] for row in rows]
        if not masks:  # the usual case: if all is greedy too, the rest is not needed
            for state in states:
                if not state.is_argmax:
                    break
            else:
                token_ids = self._argmax(logits_SV).tolist()
                if UNDECIDED not in token_ids:
                    return Drawn(token_ids, {})
        places, own_SV = [(row, at) for row in rows], logits_SV
        if not self._ruled.isdisjoint(rows):
            logits_SV = processed(logits_SV, [s.rules for s in states])
        if not [s for s in states if not s.is_argmax]:
            token_ids = best_allowed(self._argmax, logits_SV, places, masks).tolist()
            if UNDECIDED not in token_ids:
                return Drawn(token_ids, {})
        else:
            token_ids = self._draw(logits_SV, places, states, masks=masks).tolist()
        for num_candidates in (_SECOND_LOOK, self._vocab_size):
            again = [i for i, token_id in enumerate(token_ids) if token_id == UNDECIDED]
            if not again:
                break
            if num_candidates == _SECOND_LOOK:
                flags = are_broken(own_SV[again]).tolist()
                self.broken |= {rows[i] for i, broken in zip(again, flags, strict=True) if broken}
            x_BV = replace_nonfinite(logits_SV[again])
            some = [places[i] for i in again]
            ids_B = self._draw(x_BV, some, [states[i] for i in again], num_candidates, masks=masks)
            if num_candidates == self._vocab_size:
                x_BV.clamp_(min=torch.finfo(x_BV.dtype).min)  # no mask excludes all tokens
                x_BV = masked(x_BV, [masks.of(*place) for place in some])
                ids_B = torch.where(ids_B == UNDECIDED, x_BV.argmax(-1), ids_B)
            for i, token_id in zip(again, ids_B.tolist(), strict=True):
                token_ids[i] = token_id
        self._count(rows, states, token_ids)
        return Drawn(token_ids, wanted_logprobs(own_SV, states, token_ids))

    def waits(self, rows: Sequence[int]) -> bool:
        """Whether the host must take part in a draw of these rows: they want log-probabilities, a
        limited window of penalties, or what `LogitsRules` covers."""
        return any(self._rows[row].waits for row in rows)

    def start(
        self, logits_SV: Tensor, rows: Sequence[int], masks: Masks = NO_MASKS
    ) -> tuple[Tensor, Tensor]:
        """Draw what `sample` draws, for rows that do not wait. Returns the token ids, (S,), and the
        rows, both on the device: no call waits for it."""
        if self._draws is None:
            counts = self._generated, self._recent
            resident = Resident(self._floats_RP, self._top_k_R, self._top_p_R, *counts)
            self._draws = DeviceDraws(resident, self._device, self._vocab_size, self._ops)
        words = {row: mask_W for row in rows if (mask_W := masks.of(row)) is not None}
        return self._draws.draw(
            logits_SV, rows, [self._rows[row] for row in rows], words, asking=masks.asking
        )

    def failures(self, rows: Sequence[int]) -> dict[str, InfernoError]:
        """Return the errors of these rows' logits processors, by request id."""
        if self._ruled.isdisjoint(rows):
            return {}
        states = [self._rows[row] for row in self._ruled.intersection(rows)]
        errors = {s.request_id: s.rules.error for s in states if s.rules and s.rules.error}
        return {id: InfernoError(error, "See the engine's log.") for id, error in errors.items()}

    def request_id(self, row: int) -> str:
        """Return the request that has the row."""
        return self._rows[row].request_id

    def verify(
        self,
        logits_LV: Tensor,
        rows: Sequence[int],
        drafts: Sequence[Sequence[int]],
        masks: Masks = NO_MASKS,
    ) -> tuple[list[list[int]], dict[int, Logprobs]]:
        """Draw the tokens of slices with drafts: for each row, the token after its last known one,
        and while a draft equals the token drawn in its place, the one after it.

        `logits_LV` has 1 + len(drafts[i]) rows for rows[i]. Each draw is the one that a step
        without drafts would make: it has its own position's uniform number, and sees the penalties
        of the tokens before it. Returns each row's tokens, and the log-probabilities that are
        wanted, by position in all rows' tokens.
        """
        first = [0, *accumulate(1 + len(ids) for ids in drafts)]
        token_ids: list[list[int]] = [[] for _ in rows]
        if all(self._rows[row].is_argmax for row in rows):
            each = zip(rows, drafts, strict=True)
            places = [(row, at) for row, ids in each for at in range(1 + len(ids))]
            best = best_allowed(self._argmax, logits_LV, places, masks).tolist()
            if UNDECIDED not in best:
                return confirmed(best, drafts), {}
        logprobs: dict[tuple[int, int], Logprobs] = {}
        members, offset = list(range(len(rows))), 0
        while members:
            at = torch.tensor([first[i] + offset for i in members], device=self._device)
            drawn = self.sample(logits_LV[at], [rows[i] for i in members], masks, offset)
            for at_member, (i, token_id) in enumerate(zip(members, drawn.token_ids, strict=True)):
                token_ids[i].append(token_id)
                if at_member in drawn.logprobs:
                    logprobs[i, offset] = drawn.logprobs[at_member]
            going = [i for i in members if len(drafts[i]) > offset and rows[i] not in self.broken]
            members = [i for i in going if drafts[i][offset] == token_ids[i][-1]]
            offset += 1
        begins = [0, *accumulate(map(len, token_ids))]
        return token_ids, {begins[i] + j: score for (i, j), score in logprobs.items()}

    def peek(self, logits_SV: Tensor, rows: Sequence[int], offset: int) -> list[int]:
        """Draw from a draft model's logits what `sample` would draw from them, `offset` positions
        ahead, without penalties for the tokens in between. Counts nothing."""
        states = [self._rows[row] for row in rows]
        if (missing := self._vocab_size - logits_SV.shape[1]) > 0:  # a smaller vocabulary
            logits_SV = torch.nn.functional.pad(logits_SV, (0, missing), value=-math.inf)
        if all(state.is_argmax for state in states):
            return [max(0, token_id) for token_id in self._argmax(logits_SV).tolist()]
        ids_S = self._draw(logits_SV, [(row, 0) for row in rows], states, offset=offset)
        drawn: list[int] = torch.where(ids_S == UNDECIDED, logits_SV.argmax(-1), ids_S).tolist()
        return drawn

    def _draw(
        self,
        logits_SV: Tensor,
        places: Sequence[tuple[int, int]],
        states: Sequence[RowState],
        num_candidates: int = 0,
        *,
        masks: Masks = NO_MASKS,
        offset: int = 0,
    ) -> Tensor:
        """Return token ids, (S,), or UNDECIDED; considers at least `num_candidates`. `places` are
        the rows, each with the number of drafts before the draw."""
        size = self._vocab_size
        ids_S = torch.empty(len(places), dtype=torch.int64, device=self._device)
        first = num_candidates == 0
        draws = draws_of(places, states, masks, offset=offset, vocab_size=size, first=first)
        self._draw_each(logits_SV, draws, ids_S, masks, num_candidates)
        if any(draw.asks for draw in draws):
            drawn = ids_S.tolist()
            again = drawn_again(draws, drawn, masks, offset=offset, vocab_size=size, last=not first)
            self._draw_each(logits_SV, again, ids_S, masks, num_candidates)
        return ids_S

    def _draw_each(
        self,
        logits_SV: Tensor,
        draws: Sequence[Draw],
        ids_S: Tensor,
        masks: Masks,
        num_candidates: int,
    ) -> None:
        """Write the token ids of these draws."""
        for part in grouped(draws, self._rows_at_once):
            at = index_of([draw.index for draw in part], self._device)
            states = [draw.state for draw in part]
            numbers = [[draw.place[0] for draw in part], [draw.number for draw in part]]
            rows_B, uniform_B = torch.tensor(numbers, device=self._device).unbind()
            x_BV = self._adjusted(logits_SV[at], rows_B, states)
            if states[0].strategy is Strategy.GREEDY:
                ids_S[at] = best_allowed(self._argmax, x_BV, [d.place for d in part], masks)
            elif part[0].few is not None:  # the same tokens are drawn from them alone
                x_BK, ids_BK = picked(x_BV, [draw.few for draw in part])
                index_B = self._draw_group(x_BK, rows_B, uniform_B, states, num_candidates)
                ids_B = ids_BK.gather(-1, index_B.clamp(min=0)[:, None])[:, 0]
                ids_S[at] = torch.where(index_B < 0, UNDECIDED, ids_B)
            else:
                if any(draw.mask_W is not None for draw in part):
                    x_BV = masked(x_BV, [draw.mask_W for draw in part])
                places = [draw.place for draw in part] if part[0].asks else ()
                ids_S[at] = self._draw_group(
                    x_BV, rows_B, uniform_B, states, num_candidates, places, masks
                )

    def _draw_group(
        self,
        x_BV: Tensor,
        rows_B: Tensor,
        uniform_B: Tensor,
        states: Sequence[RowState],
        num_candidates: int,
        asked: Sequence[tuple[int, int]] = (),
        masks: Masks = NO_MASKS,
    ) -> Tensor:
        """Return token ids, (B,), or UNDECIDED, for rows of one strategy and width that are not
        greedy. The best tokens of `asked` rows are asked for."""
        strategy, width = states[0].strategy, states[0].width
        temperature_B1 = self._floats_RP[rows_B, TEMPERATURE, None]
        min_p_B1 = self._floats_RP[rows_B, MIN_P, None]
        if strategy is Strategy.FULL:
            used_min_p_B1 = min_p_B1 if any(state.min_p for state in states) else None
            return draw_full(x_BV, temperature_B1, used_min_p_B1, uniform_B)
        best_BK, ids_BK = sort_best(x_BV, max(width, num_candidates))
        total_B = None
        if strategy is Strategy.TOP_P:
            total_B = integer_masses(x_BV, best_BK[:, :1], temperature_B1).sum(-1)
        cut = Cut(self._top_k_R[rows_B], self._top_p_R[rows_B], temperature_B1, min_p_B1)
        if asked:
            some = AskedDraws(x_BV, best_BK, ids_BK, total_B, cut, uniform_B, asked, masks)
            return some.draw()
        mass_BK = truncate(best_BK, total_B, cut)
        complete = ids_BK.shape[1] == x_BV.shape[1]
        return draw_truncated(best_BK, ids_BK, mass_BK, uniform_B, complete=complete)

    def _adjusted(self, x_BV: Tensor, rows_B: Tensor, states: Sequence[RowState]) -> Tensor:
        """Apply penalties, bias and `min_tokens`, on a float32 copy if a row asks for any."""
        if not any(state.adjusts_logits for state in states):
            return x_BV
        x_BV = x_BV.to(torch.float32, copy=True)
        if repeated := [i for i, state in enumerate(states) if state.penalty_window]:
            at = index_of(repeated, self._device)
            x, penalty = x_BV[at], self._floats_RP[rows_B[at], REPETITION, None]
            penalised = torch.where(x > 0, x / penalty, x * penalty)
            x_BV[at] = torch.where(self._recent.of(rows_B[at]) > 0, penalised, x)
        if counted := [i for i, state in enumerate(states) if state.counts_output]:
            at = index_of(counted, self._device)
            count, floats = self._generated.of(rows_B[at]), self._floats_RP[rows_B[at]]
            x_BV[at] -= count * floats[:, FREQUENCY, None] + (count > 0) * floats[:, PRESENCE, None]
        for x_V, state in zip(x_BV.unbind(), states, strict=True):
            if state.bias is not None:
                x_V.index_add_(0, *state.bias)
            if state.rules is not None:
                state.rules.exclude(x_V)
        return x_BV

    def _count(
        self, rows: Sequence[int], states: Sequence[RowState], token_ids: Sequence[int]
    ) -> None:
        generated: list[tuple[int, int, int]] = []
        recent: list[tuple[int, int, int]] = []
        for row, state, token_id in zip(rows, states, token_ids, strict=True):
            if state.is_argmax:
                continue
            state.advance()
            if state.rules is not None:
                state.rules.output.append(token_id)
            if state.counts_output:
                generated.append((row, token_id, 1))
            if state.penalty_window:
                recent.append((row, token_id, 1))
            if state.penalty_window > 0:
                state.recent.append(token_id)
                if len(state.recent) > state.penalty_window:
                    recent.append((row, state.recent.popleft(), -1))
        self._generated.add(generated)
        self._recent.add(recent)
