"""What the sampler remembers of a row between draws: its parameters, its counts and its random
numbers.

Suffixes: B rows drawn together, V vocabulary, R resident rows.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Sequence

import torch
from attrs import define
from torch import Tensor

from inferno.core.sampling_params import SamplingParams
from inferno.core.types import Request

UNIFORM_BITS = 31
"""Of a uniform number: its product with a mass of up to 63 bits is then exact in int64."""
_TOP_P_WIDTH = 512
"""Candidates looked at first for `top_p`: mostly enough; if not, there is a second look."""


class Kind(enum.Enum):
    GREEDY = enum.auto()
    OPEN = enum.auto()
    """Any token, but for `min_p`. Needs no order."""
    TOP_K = enum.auto()
    TOP_P = enum.auto()
    """`top_p` of the whole vocabulary: needs its total mass."""


@define(eq=False)
class Row:
    """What the host knows of a resident row."""

    kind: Kind
    width: int
    """Candidates to look at first, for TOP_K and TOP_P."""
    key: int
    """The seed, hashed."""
    generated: int
    min_tokens: int
    min_p: bool
    counted: bool
    """Whether presence or frequency are penalised."""
    window: int
    """Last tokens that `repetition_penalty` looks at: -1 all, 0 none."""
    recent: deque[int]
    """The tokens in a limited window."""
    bias: tuple[Tensor, Tensor] | None
    forbidden: Tensor | None
    """Stop tokens, while there are fewer than `min_tokens`."""
    logprobs: int | None
    plain: bool = False
    """Whether the next draw is an argmax and no more."""
    adjusted: bool = False
    """Whether the next draw changes logits."""

    @classmethod
    def of(
        cls, request: Request, vocab_size: int, device: torch.device, seed: int, generated: int
    ) -> Row:
        params = request.params
        kind, width = _way(params, vocab_size)
        # Ids beyond the vocabulary, as some models have among their end tokens, are never drawn
        # anyway.
        stops = sorted(
            {i for i in (*request.eos_token_ids, *params.stop_token_ids) if 0 <= i < vocab_size}
        )
        row = cls(
            kind=kind,
            width=width,
            key=_mix(seed),
            generated=generated,
            min_tokens=params.min_tokens,
            min_p=params.min_p > 0,
            counted=bool(params.presence_penalty or params.frequency_penalty),
            window=params.repeat_last_n if params.repetition_penalty != 1 else 0,
            recent=deque(),
            bias=_bias(params, device),
            forbidden=torch.tensor(stops, device=device) if stops else None,
            logprobs=params.logprobs,
        )
        row.settle()
        return row

    def uniform(self) -> int:
        """The next draw's uniform number."""
        return 0 if self.kind is Kind.GREEDY else uniform(self.key, self.generated)

    def advance(self) -> None:
        self.generated += 1
        if self.generated == self.min_tokens:
            self.settle()

    def settle(self) -> None:
        """Work out what the draws from here on need, until `min_tokens` are reached."""
        if self.generated >= self.min_tokens:
            self.forbidden = None
        self.adjusted = bool(self.counted or self.window or self.bias or self.forbidden is not None)
        self.plain = self.kind is Kind.GREEDY and self.logprobs is None and not self.adjusted


def _way(params: SamplingParams, vocab_size: int) -> tuple[Kind, int]:
    """How the request is drawn, and from how many candidates: its own affair, whatever its
    neighbours need."""
    if params.greedy:
        return Kind.GREEDY, 0
    if 0 < params.top_k < vocab_size:
        # Twice as many, because equally likely tokens at the end cost a second look; powers of two,
        # to share a group.
        return Kind.TOP_K, max(32, 1 << (2 * params.top_k - 1).bit_length())
    return (Kind.TOP_P, _TOP_P_WIDTH) if params.top_p < 1 else (Kind.OPEN, 0)


def _bias(params: SamplingParams, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Token ids and what to add to their logits."""
    bias = {
        token_id: -math.inf if b <= -100 else b for token_id, b in params.logit_bias.items() if b
    }
    if not bias:
        return None
    return torch.tensor(list(bias), device=device), torch.tensor(
        list(bias.values()), device=device
    ).float()


class Tally:
    """How often each row has each token, (R, V). Takes its memory when a row first needs it."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape, self._device = (num_rows, vocab_size), device
        self._count_RV: Tensor | None = None

    def fill(self, row: int, token_ids: Sequence[int]) -> None:
        """The row's tokens are these, whatever they were."""
        if self._count_RV is None:
            self._count_RV = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        token_ids_T = torch.tensor(token_ids, dtype=torch.int64, device=self._device)
        self._count_RV[row] = torch.bincount(token_ids_T, minlength=self._shape[1])

    def add(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Entries are (row, token id, how many more)."""
        if entries and self._count_RV is not None:
            rows, token_ids, more = torch.tensor(entries, device=self._device).unbind(-1)
            self._count_RV.index_put_((rows, token_ids), more.int(), accumulate=True)

    def of(self, rows_B: Tensor) -> Tensor:
        """(B, V), a copy."""
        assert self._count_RV is not None, "a row that needs the tally was filled when admitted"
        return self._count_RV[rows_B]


def _mix(x: int) -> int:
    """64 well mixed bits: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return x ^ (x >> 31)


def uniform(key: int, position: int) -> int:
    """A number in [0, 2**31) that depends on nothing else: SplitMix64, counted instead of
    stepped."""
    return _mix(key + position * 0x9E3779B97F4A7C15) >> (64 - UNIFORM_BITS)
