"""Draws on a device without waiting for it: what the host knows goes there in one copy, and the
token ids stay there.

The tokens are those of `Sampler.sample`. Where that tries a few candidates first and looks at the
result, this draws from all tokens at once (`select`), and chooses between the drawn token and the
model's own on the device.

Suffixes: S logits rows of a step, B those drawn together, V vocabulary, R resident rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from inferno.device.staging import HostBuffers
from inferno.sampling.draw import draw_full, replace_nonfinite
from inferno.sampling.select import draw_best
from inferno.sampling.state import RowState, Strategy, TokenCounts

TEMPERATURE, MIN_P, REPETITION, FREQUENCY, PRESENCE = range(5)


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
    _buffers: HostBuffers = field(init=False)
    _numbers: list[np.ndarray[Any, Any]] = field(init=False)
    _sent: Tensor = field(init=False)

    def __attrs_post_init__(self) -> None:
        count = 3 * len(self.resident.top_k_R)
        self._buffers = HostBuffers(8 * count, str(self.device))
        self._numbers = [held.view(torch.int64).numpy() for held in self._buffers.buffers]
        self._sent = torch.empty(count, dtype=torch.int64, device=self.device)

    def draw(
        self, logits_SV: Tensor, rows: Sequence[int], states: Sequence[RowState]
    ) -> tuple[Tensor, Tensor]:
        """Return token ids, (S,), and the rows, on the device, and count the tokens. No state may
        want what only the host can give (`RowState.waits`)."""
        groups = _groups(states, max(1, _AT_ONCE // self.vocab_size))
        order = [i for members in groups for i in members]
        uniforms = [state.uniform(0) for state in states]
        rows_S, uniform_S, order_S = self._send(rows, uniforms, order)
        ids_S = torch.empty_like(rows_S)
        first = 0
        for members in groups:
            at_B = order_S[first : first + len(members)]
            first += len(members)
            rows_B, some = rows_S[at_B], [states[i] for i in members]
            logits_BV = logits_SV if len(groups) == 1 else logits_SV[at_B]
            ids_S[at_B] = self._draw(logits_BV, rows_B, uniform_S[at_B], some)
            if some[0].counts_tokens:
                self.resident.generated.add_drawn(rows_B, ids_S[at_B])
                self.resident.recent.add_drawn(rows_B, ids_S[at_B])
        for state in states:
            if not state.is_argmax:
                state.advance()
        return ids_S, rows_S

    def _send(self, *numbers: Sequence[int]) -> list[Tensor]:
        """Copy sequences of equal length to the device."""
        turn, size = self._buffers.next(), len(numbers[0])
        held, total = self._numbers[turn], size * len(numbers)
        held[:total] = np.array(numbers, np.int64).reshape(-1)
        host = self._buffers.current.view(torch.int64)
        # Earlier draws may still read the last ones, but on the same stream: before this copy.
        self._buffers.send(self._sent[:total], host[:total])
        return list(self._sent[:total].view(len(numbers), size).unbind())

    def _draw(
        self, logits_BV: Tensor, rows_B: Tensor, uniform_B: Tensor, states: Sequence[RowState]
    ) -> Tensor:
        resident = self.resident
        x_BV = replace_nonfinite(logits_BV)
        own_B = x_BV.argmax(-1)
        if states[0].is_argmax:
            return own_B
        x_BV = self._adjusted(x_BV, rows_B, states)
        floats_BP = resident.floats_RP[rows_B]
        strategy = states[0].strategy
        if strategy is Strategy.GREEDY:
            ids_B = x_BV.argmax(-1)
        elif strategy is Strategy.FULL:
            temperature_B1, min_p_B1 = floats_BP[:, TEMPERATURE, None], floats_BP[:, MIN_P, None]
            ids_B = draw_full(x_BV, temperature_B1, min_p_B1, uniform_B)
        else:
            ids_B = draw_best(
                x_BV,
                floats_BP[:, TEMPERATURE, None],
                floats_BP[:, MIN_P, None],
                resident.top_k_R[rows_B],
                resident.top_p_R[rows_B],
                uniform_B,
            )
        return torch.where(x_BV.amax(-1).isfinite(), ids_B, own_B)

    def _adjusted(self, x_BV: Tensor, rows_B: Tensor, states: Sequence[RowState]) -> Tensor:
        """Apply penalties, bias and `min_tokens`. Penalties of rows without any change nothing."""
        if states[0].counts_tokens:
            floats_BP = self.resident.floats_RP[rows_B]
            penalty_B1 = floats_BP[:, REPETITION, None]
            if (recent_BV := self.resident.recent.held(rows_B)) is not None:
                penalised_BV = torch.where(x_BV > 0, x_BV / penalty_B1, x_BV * penalty_B1)
                x_BV = torch.where(recent_BV > 0, penalised_BV, x_BV)
            if (count_BV := self.resident.generated.held(rows_B)) is not None:
                x_BV = x_BV - (
                    count_BV * floats_BP[:, FREQUENCY, None]
                    + (count_BV > 0) * floats_BP[:, PRESENCE, None]
                )
        for x_V, state in zip(x_BV.unbind(), states, strict=True):
            state.exclude(x_V)
        return x_BV


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
