"""Sampling state of a row: its parameters, token counts and random numbers.

Suffixes: B rows drawn together, V vocabulary, R resident rows.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Mapping, Sequence

import torch
from attrs import define
from torch import Tensor

from inferno.constraints.rules import LogitsRules
from inferno.device.staging import sent
from inferno.ops.masses import UNIFORM_BITS
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams

_TOP_P_WIDTH = 512
"""Candidates of the first attempt for `top_p`: mostly enough."""


class Strategy(enum.Enum):
    """How a request's tokens are drawn."""

    GREEDY = enum.auto()
    FULL = enum.auto()
    """From the full vocabulary, except what `min_p` cuts off. Needs no sort."""
    TOP_K = enum.auto()
    TOP_P = enum.auto()
    """`top_p` of the full vocabulary: needs its total mass."""


@define(eq=False)
class RowState:
    """Sampling state of one resident row, on the host."""

    strategy: Strategy
    width: int
    """Candidates of the first attempt, for TOP_K and TOP_P."""
    key: int
    """The seed, hashed."""
    generated: int
    min_tokens: int
    min_p: bool
    counts_output: bool
    """Whether presence or frequency penalties need counts of the output."""
    penalty_window: int
    """Number of last tokens that `repetition_penalty` covers: -1 is all, 0 none."""
    recent: deque[int]
    """Those tokens, if the window is limited."""
    bias: tuple[Tensor, Tensor] | None
    """Token ids and what is added to their logits: until `min_tokens` are generated, -inf for end
    and stop tokens."""
    later_bias: tuple[Tensor, Tensor] | None
    """After that."""
    logprobs: int | None
    logprob_ids: tuple[int, ...]
    request_id: str
    rules: LogitsRules | None
    is_argmax: bool = False
    """Whether the next draw is an argmax of the logits as they are."""
    adjusts_logits: bool = False
    """Whether the next draw applies penalties, biases or rules."""

    @classmethod
    def of(
        cls,
        request: Request,
        vocab_size: int,
        device: torch.device,
        generated: int,
        rules: LogitsRules | None = None,
    ) -> RowState:
        params = request.params
        strategy, width = _strategy(params, vocab_size)
        # Some models have end tokens beyond the vocabulary: these are never drawn anyway.
        stops = sorted(
            {i for i in (*request.eos_token_ids, *params.stop_token_ids) if 0 <= i < vocab_size}
        )
        bias = {
            token_id: -math.inf if b <= -100 else b
            for token_id, b in params.logit_bias.items()
            if b
        }
        later, early = _sent(bias, device), generated < params.min_tokens
        row = cls(
            strategy=strategy,
            width=width,
            key=_mix(request.seed),
            generated=generated,
            min_tokens=params.min_tokens,
            min_p=params.min_p > 0,
            counts_output=bool(params.presence_penalty or params.frequency_penalty),
            penalty_window=params.repeat_last_n if params.repetition_penalty != 1 else 0,
            recent=deque(),
            bias=_sent({**bias, **dict.fromkeys(stops, -math.inf)}, device) if early else later,
            later_bias=later,
            logprobs=params.logprobs,
            request_id=request.id,
            rules=rules,
            logprob_ids=params.logprob_token_ids,
        )
        row._plan_draws()
        return row

    @property
    def waits(self) -> bool:
        """Whether the host must know each token before the next draw, or look at the logits."""
        limited = self.penalty_window > 0
        return self.rules is not None or self.logprobs is not None or limited

    @property
    def counts_tokens(self) -> bool:
        """Whether any penalty counts tokens."""
        return self.counts_output or self.penalty_window != 0

    @property
    def is_plain(self) -> bool:
        """Whether it is greedy and no penalty counts its tokens."""
        return self.strategy is Strategy.GREEDY and not self.counts_tokens

    def uniform(self, offset: int, *, refused: bool = False) -> int:
        """Return the uniform number of the next draw, or of one `offset` positions after it; a
        second number if the grammar `refused` the token of the first."""
        if self.strategy is Strategy.GREEDY:
            return 0
        return uniform(_mix(self.key) if refused else self.key, self.generated + offset)

    def advance(self) -> None:
        self.generated += 1
        if self.generated == self.min_tokens:
            self._plan_draws()

    def _plan_draws(self) -> None:
        """Decide what the draws from here on need, until `min_tokens` are reached."""
        if self.generated >= self.min_tokens:
            self.bias = self.later_bias
        self.adjusts_logits = bool(
            self.counts_output or self.penalty_window or self.bias or self.rules
        )
        self.is_argmax = (
            self.strategy is Strategy.GREEDY and self.logprobs is None and not self.adjusts_logits
        )


def _strategy(params: SamplingParams, vocab_size: int) -> tuple[Strategy, int]:
    """Return how a request is drawn and from how many candidates, independent of the batch."""
    if params.greedy:
        return Strategy.GREEDY, 0
    if 0 < params.top_k < vocab_size:
        # Twice as many: equally likely tokens at the end cost a second attempt. Powers of two, so
        # that requests share groups.
        return Strategy.TOP_K, max(32, 1 << (2 * params.top_k - 1).bit_length())
    return (Strategy.TOP_P, _TOP_P_WIDTH) if params.top_p < 1 else (Strategy.FULL, 0)


def _sent(bias: Mapping[int, float], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return token ids and their biases on the device, or None if there are none."""
    if not bias:
        return None
    return sent(list(bias), device), sent(list(bias.values()), device, torch.float32)


class TokenCounts:
    """Counts of each token in each row, (R, V). Allocated when a row first needs them."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape, self._device = (num_rows, vocab_size), device
        self._count_RV: Tensor | None = None

    def fill(self, row: int, token_ids: Sequence[int]) -> None:
        """Replace the row's tokens."""
        if self._count_RV is None:
            self._count_RV = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        token_ids_T = sent(list(token_ids), self._device, torch.int64)
        ones_T = torch.ones_like(token_ids_T, dtype=torch.int32)
        self._count_RV[row].zero_().scatter_add_(0, token_ids_T, ones_T)

    def add(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Entries are (row, token id, how many more)."""
        if entries and self._count_RV is not None:
            rows, token_ids, more = torch.tensor(entries, device=self._device).unbind(-1)
            self._count_RV.index_put_((rows, token_ids), more.int(), accumulate=True)

    def add_drawn(self, rows_B: Tensor, ids_B: Tensor) -> None:
        """Count one token of each row, without knowing it on the host."""
        if self._count_RV is not None:
            self._count_RV[rows_B, ids_B] = self._count_RV[rows_B, ids_B] + 1

    @property
    def all(self) -> Tensor | None:
        """The counts of every row, (R, V); None if no row ever needed any."""
        return self._count_RV

    def of(self, rows_B: Tensor) -> Tensor:
        """Return the counts of these rows, (B, V), a copy."""
        assert self._count_RV is not None, "a row that needs counts is filled at admission"
        return self._count_RV[rows_B]


def _mix(x: int) -> int:
    """Mix 64 bits: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return x ^ (x >> 31)


def uniform(key: int, position: int) -> int:
    """Return a number in [0, 2**31): output `position` of the SplitMix64 stream of `key`."""
    return _mix(key + position * 0x9E3779B97F4A7C15) >> (64 - UNIFORM_BITS)
