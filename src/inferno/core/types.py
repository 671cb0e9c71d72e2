"""The values that walk through the rooms. Frozen, but for Sequence, which the scheduler owns.

They travel between processes as msgpack: plain numbers, strings, tuples and dicts only.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from attrs import define, field, frozen

from inferno.core.sampling_params import SamplingParams


@frozen(kw_only=True)
class Request:
    """What a caller wants, in tokens. Never changes."""

    id: str
    token_ids: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    eos_token_ids: tuple[int, ...] = ()
    """The model's own end tokens; none when the caller ignores them."""
    priority: int = 0
    """Lower runs first; among equals, first come first served."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@frozen
class Logprobs:
    """One position's log-probabilities (natural), under the model's own distribution."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens with their log-probabilities, best first."""


@frozen
class EngineOutput:
    """What the engine reports of one request: its next token, or that it ended without one."""

    request_id: str
    token_id: int | None
    """None when a request ends without one more token."""
    finish: FinishReason | None = None
    stop_id: int | None = None
    """The `stop_token_ids` entry that ended the request, None for the model's own end token."""
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    """On a request's first token, if asked for: one entry per prompt token, None for the first."""
    num_cached: int = 0
    """On a request's first token: prompt tokens found in the cache."""
    error: str = ""


@define(eq=False)
class Sequence:
    """A request in progress. Only the scheduler writes to it."""

    request: Request
    token_ids: list[int]
    """Prompt and output so far."""
    arrival: int
    """Order of arrival: the tie-break of equal priorities, kept across preemptions."""
    num_computed: int = 0
    """Leading tokens whose keys and values are in the cache."""
    block_ids: list[int] = field(factory=list)
    keys: list[bytes] = field(factory=list)
    """Content keys of the leading full blocks: see `cache.extend_keys`."""
    num_kept: int = 0
    """Leading blocks the prefix cache already knows."""
    window_starts: list[int] = field(factory=list)
    """For each of the pool's windows, the place of the first block that it holds a window block
    of."""
    row: int = -1
    """Its row in the runner's resident tables while it runs."""
    num_cached: int = -1
    """Prompt tokens found in the cache at first admission; -1 before it."""

    @property
    def num_pending(self) -> int:
        """Tokens whose keys and values are not in the cache yet."""
        return len(self.token_ids) - self.num_computed


class Slice(NamedTuple):
    """One sequence's share of a step: `num_tokens` tokens from `start` on. A tuple, because a step
    may hold hundreds."""

    row: int
    start: int
    num_tokens: int
    samples: bool
    """Whether the last token's logits are wanted: false within a chunked prompt."""


@frozen(eq=False)
class NewSequence:
    """A sequence takes a row: all the runner must know of it. Later steps name the row only."""

    row: int
    request: Request
    token_ids: tuple[int, ...]
    """Everything known so far: the prompt, and after a preemption the output too."""


class BlockGrant(NamedTuple):
    """Entry `place` of a row's block table is `block_id` from this step on."""

    row: int
    place: int
    block_id: int


class WindowGrant(NamedTuple):
    """The same for the layers of a sliding window that have window blocks of their own
    (`cache.WindowPool`)."""

    window: int
    """In tokens."""
    row: int
    place: int
    block_id: int


@frozen(eq=False)
class Step:
    """The scheduler's plan for one forward pass. Carries what is new, never the context (O(new)
    host work)."""

    slices: tuple[Slice, ...]
    new_sequences: tuple[NewSequence, ...] = ()
    grants: tuple[BlockGrant, ...] = ()
    window_grants: tuple[WindowGrant, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.slices)


@frozen(eq=False)
class Sampled:
    """What a step's sampling slices drew, in their order."""

    token_ids: list[int]
    logprobs: Mapping[int, Logprobs] = field(factory=dict)
    """By position in `token_ids`, where asked for."""
    prompt_logprobs: Mapping[int, tuple[Logprobs | None, ...]] = field(factory=dict)
    """By row, when the row's prompt is complete."""


@define
class EngineStats:
    """The engine's gauges now, and its counters since it started."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    """Share of the cache that sequences hold, 0 to 1: of its blocks, or of a sliding window's,
    whichever is fuller."""
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the cache instead of computed."""
    generated_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    preemptions: int = 0
