"""Draws on a device without waiting for it: what the host knows goes there in one copy, and the
token ids stay there.

The tokens are those of `Sampler.sample`. Where that tries a few candidates first and looks at the
result, this draws from all tokens at once, and chooses between the drawn token and the model's own
on the device. A kernel provider's `draw` takes the rows of a step together; torch's operators take
those that are drawn alike.

Suffixes: S logits rows of a step, B those drawn together, V vocabulary, R resident rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from inferno.device.staging import HostBuffers, host_buffer, sent
from inferno.ops.draws import BEST, Biases, DrawParams, Penalties
from inferno.ops.masses import draw_full, replace_nonfinite
from inferno.ops.order import draw_best
from inferno.ops.reference import TORCH, Ops
from inferno.sampling.state import RowState, Strategy, TokenCounts

TEMPERATURE, MIN_P, REPETITION, FREQUENCY, PRESENCE = range(5)


_NONE = -1
"""The second number of a row that does not ask."""
_AT_ONCE = 2**23
"""Logits whose temporaries, of 8 bytes each, are in memory at once."""


@frozen(eq=False)
class Resident:
    """What a sampler keeps for each resident row on its device."""

    floats_RP: Tensor
    top_k_R: Tensor
    top_p_R: Tensor
    """As integers (`draw.floor_share`)."""
    generated: TokenCounts
    recent: TokenCounts


@define(eq=False)
class DeviceDraws:
    """Draws for one sampler."""

    resident: Resident
    device: torch.device
    vocab_size: int
    ops: Ops = TORCH
    _buffers: HostBuffers = field(init=False)
    _numbers: list[np.ndarray[Any, Any]] = field(init=False)
    _sent: Tensor = field(init=False)

    def __attrs_post_init__(self) -> None:
        count = 4 * len(self.resident.top_k_R)
        self._buffers = HostBuffers(8 * count, str(self.device))
        self._numbers = [buffer.view(torch.int64).numpy() for buffer in self._buffers.buffers]
        self._sent = torch.empty(count, dtype=torch.int64, device=self.device)

    def draw(
        self,
        logits_SV: Tensor,
        rows: Sequence[int],
        states: Sequence[RowState],
        masks: Mapping[int, Any],
        asking: Collection[int] = (),
    ) -> tuple[Tensor, Tensor]:
        """Return token ids, (S,), and the rows, on the device, and count the tokens. `masks` has
        the words of allowed tokens (W,) of some rows. The `asking` ones that draw from the whole
        vocabulary do so without a mask first, and again where that token is refused
        (`groups.drawn_again`). No state may want
        what only the host can give (`RowState.waits`)."""
        together = self.ops.draw is not TORCH.draw
        most = max(1, _AT_ONCE // self.vocab_size)
        groups = [[*range(len(states))]] if together else _groups(states, most)
        order = [i for members in groups for i in members]
        uniforms = [BEST if s.strategy is Strategy.GREEDY else s.uniform(0) for s in states]
        asks = [
            row in masks and row in asking and s.strategy is Strategy.FULL
            for row, s in zip(rows, states, strict=True)
        ]
        seconds = [
            s.uniform(0, refused=True) if ask else _NONE
            for s, ask in zip(states, asks, strict=True)
        ]
        rows_S, uniform_S, second_S, order_S = self._send(rows, uniforms, seconds, order)
        words_SW = self._words(rows, masks) if masks else None
        first_SW = words_SW
        if words_SW is not None and any(asks):
            first_SW = words_SW.masked_fill(second_S[:, None] != _NONE, -1)
        ids_S = torch.empty_like(rows_S)
        first = 0
        for members in groups:
            at: Tensor | slice = order_S[first : first + len(members)]
            if len(groups) == 1:
                at = slice(None)  # in order: nothing is copied
            first += len(members)
            rows_B, some = rows_S[at], [states[i] for i in members]
            words_BW, first_BW = (None if w is None else w[at] for w in (words_SW, first_SW))
            x_BV = logits_SV[at]
            ids_B = self._draw(x_BV, rows_B, uniform_S[at], some, first_BW)
            if words_BW is not None and any(asks[i] for i in members):
                second_B = second_S[at]
                again_B = self._draw(x_BV, rows_B, second_B.clamp(min=0), some, words_BW)
                kept_B = (second_B == _NONE) | _allowed(words_BW, ids_B)
                ids_B = torch.where(kept_B, ids_B, again_B)
            ids_S[at] = ids_B
            if any(state.counts_tokens for state in some):
                self.resident.generated.add_drawn(rows_B, ids_S[at])
                self.resident.recent.add_drawn(rows_B, ids_S[at])
        for state in states:
            if not state.is_argmax:
                state.advance()
        return ids_S, rows_S

    def _send(self, *numbers: Sequence[int]) -> list[Tensor]:
        """Copy sequences of equal length to the device."""
        turn, size = self._buffers.next(), len(numbers[0])
        buffer, total = self._numbers[turn], size * len(numbers)
        buffer[:total] = np.array(numbers, np.int64).reshape(-1)
        host = self._buffers.current.view(torch.int64)
        # Earlier draws may still read the last ones, but on the same stream: before this copy.
        self._buffers.send(self._sent[:total], host[:total])
        return list(self._sent[:total].view(len(numbers), size).unbind())

    def _words(self, rows: Sequence[int], masks: Mapping[int, Any]) -> Tensor:
        """Copy masks to the device, (S, W). Rows without one allow every token."""
        words = max(mask_W.size for mask_W in masks.values())
        host = host_buffer(4 * words * len(rows), str(self.device))
        words_SW = host.view(torch.int32).view(len(rows), words)
        array = words_SW.numpy()
        for i, row in enumerate(rows):
            array[i] = masks.get(row, -1)
        return words_SW.to(self.device, non_blocking=True)

    def _draw(
        self,
        logits_BV: Tensor,
        rows_B: Tensor,
        uniform_B: Tensor,
        states: Sequence[RowState],
        words_BW: Tensor | None,
    ) -> Tensor:
        x_BV, own_BV = logits_BV, None
        if words_BW is not None or any(state.adjusts_logits for state in states):
            x_BV, own_BV = self._adjusted(logits_BV, rows_B, states, words_BW), logits_BV
        if words_BW is not None:
            # A token that the mask allows, although the model or a bias excludes it.
            least = torch.finfo(torch.float32).min
            finite_BV = logits_BV.float().nan_to_num(least, neginf=least)
            own_BV = self.ops.adjust(finite_BV, None, None, words_BW)
        if all(state.strategy is Strategy.GREEDY for state in states):
            return self.ops.draw(x_BV, None, own_BV)
        resident = self.resident
        floats_BP = resident.floats_RP[rows_B]
        temperature_B, min_p_B = floats_BP[:, TEMPERATURE], floats_BP[:, MIN_P]
        top_k_B, top_p_B = resident.top_k_R[rows_B], resident.top_p_R[rows_B]
        if self.ops.draw is not TORCH.draw:
            params = DrawParams(temperature_B, min_p_B, top_k_B, top_p_B, uniform_B)
            return self.ops.draw(x_BV, params, own_BV)
        own_B = replace_nonfinite(logits_BV if own_BV is None else own_BV).argmax(-1)
        if own_BV is None:
            x_BV = replace_nonfinite(x_BV)
        columns = temperature_B[:, None], min_p_B[:, None]
        if states[0].strategy is Strategy.FULL:
            ids_B = draw_full(x_BV, *columns, uniform_B)
        else:
            ids_B = draw_best(x_BV, *columns, top_k_B, top_p_B, uniform_B)
        return torch.where(x_BV.amax(-1).isfinite(), ids_B, own_B)

    def _adjusted(
        self,
        logits_BV: Tensor,
        rows_B: Tensor,
        states: Sequence[RowState],
        words_BW: Tensor | None,
    ) -> Tensor:
        """Apply penalties, biases, `min_tokens` and masks. Rows without penalties have some that
        change nothing."""
        resident, penalties = self.resident, None
        if any(state.counts_tokens for state in states):
            floats_BP = resident.floats_RP[rows_B]
            columns = [floats_BP[:, which] for which in (REPETITION, FREQUENCY, PRESENCE)]
            counts = resident.recent.all, resident.generated.all
            penalties = Penalties(rows_B, *counts, *columns)
        return self.ops.adjust(logits_BV, penalties, self._biases(states), words_BW)

    def _biases(self, states: Sequence[RowState]) -> Biases | None:
        by_row = {i: state.bias for i, state in enumerate(states) if state.bias is not None}
        if not by_row:
            return None
        ids, values = zip(*by_row.values(), strict=True)
        counts = sent([len(each) for each in ids], self.device)
        at_N = sent(list(by_row), self.device).repeat_interleave(
            counts, output_size=sum(map(len, ids))
        )
        return Biases(at_N, torch.cat(ids), torch.cat(values))


def _allowed(words_BW: Tensor, ids_B: Tensor) -> Tensor:
    """Return whether the masks allow these tokens, (B,)."""
    word_B = ids_B >> 5
    found_B = words_BW.gather(-1, word_B.clamp(max=words_BW.shape[1] - 1)[:, None])[:, 0]
    return (word_B < words_BW.shape[1]) & (found_B >> (ids_B & 31) & 1).bool()


def _groups(states: Sequence[RowState], most: int) -> list[list[int]]:
    """Group positions by how they are drawn."""
    groups: dict[Any, list[int]] = {}
    for i, state in enumerate(states):
        groups.setdefault(_kind(state), []).append(i)
    return [
        members[start : start + most]
        for members in groups.values()
        for start in range(0, len(members), most)
    ]


def _kind(state: RowState) -> tuple[object, ...]:
    best = state.strategy in (Strategy.TOP_K, Strategy.TOP_P)
    return best or state.strategy, state.counts_tokens, state.is_argmax
