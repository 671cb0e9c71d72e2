"""The values that modules pass to each other. All are frozen but Sequence, which the scheduler
owns.

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
    """The model's own end tokens; empty if the caller ignores them."""
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
    """What the engine reports for one request: its next token, or that it ended without one."""

    request_id: str
    token_id: int | None
    """None if the request ended without a further token."""
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
    row: int | None = None
    """Its row in the runner's resident tables while it runs."""
    num_computed: int = 0
    """Leading tokens whose keys and values are in the cache, and that its states have seen."""
    num_cached: int | None = None
    """Prompt tokens found in the cache at first admission; None before it."""
    keys: list[bytes] = field(factory=list)
    """Content keys of the leading full blocks: see `kvcache.extend_keys`."""
    block_ids: list[int] = field(factory=list)
    """Its blocks in the full group."""
    held_from: list[int] = field(factory=list)
    """For each sliding window's group, the index of the first block that it holds there."""
    num_inserted: int = 0
    """Leading blocks already inserted into the prefix cache."""
    snapshots_at: tuple[int, ...] = ()
    """Positions at which to take a snapshot of its recurrent states."""
    last_snapshot: int | None = None
    """Index of the block after which its last snapshot was taken, if any."""

    @property
    def num_pending(self) -> int:
        """Number of tokens still to be computed."""
        return len(self.token_ids) - self.num_computed

    @property
    def held_row(self) -> int:
        """The row of a running sequence."""
        assert self.row is not None, "only running sequences have a row"
        return self.row


class Slice(NamedTuple):
    """One sequence's share of a step: `num_tokens` tokens from `start` on. A tuple, because a step
    may hold hundreds."""

    row: int
    start: int
    num_tokens: int
    samples: bool
    """Whether to sample after its last token: false inside a chunked prompt."""


@frozen(eq=False)
class NewSequence:
    """A sequence that takes a row: all that the runner needs of it. Later steps name only the
    row."""

    row: int
    request: Request
    token_ids: tuple[int, ...]
    """Everything known so far: the prompt, and after a preemption the output too."""


class BlockUpdate(NamedTuple):
    """Entry `index` of a row's block table in a cache group is `block_id` from this step on."""

    group: int
    row: int
    index: int  # type: ignore[assignment]  # tuple.index is not needed here
    block_id: int


class StateCopy(NamedTuple):
    """Copy the states in one slot to another, in every layer that keeps states."""

    source: int | None
    """None: zeros."""
    target: int


@frozen(eq=False)
class Step:
    """The scheduler's plan for one forward pass. Carries what is new, never the context (O(new)
    host work)."""

    slices: tuple[Slice, ...]
    new_sequences: tuple[NewSequence, ...] = ()
    block_updates: tuple[BlockUpdate, ...] = ()
    copies_before: tuple[StateCopy, ...] = ()
    """Before the forward pass: the initial states of new sequences."""
    copies_after: tuple[StateCopy, ...] = ()
    """After it: snapshots."""

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.slices)


@frozen(eq=False)
class Sampled:
    """The tokens that a step's sampling slices drew, in order."""

    token_ids: list[int]
    logprobs: Mapping[int, Logprobs] = field(factory=dict)
    """By position in `token_ids`, if requested."""
    prompt_logprobs: Mapping[int, tuple[Logprobs | None, ...]] = field(factory=dict)
    """By row, once the row's prompt is complete."""


@define
class EngineStats:
    """The engine's gauges now, and its counters since it started."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    """Share of the cache's blocks that sequences hold, 0 to 1, in the group that is fullest."""
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the cache instead of computed."""
    generated_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    preemptions: int = 0
