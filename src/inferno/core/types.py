"""The values that walk through the rooms. Frozen, but for Sequence, which the scheduler owns.

They travel between processes as msgpack: plain numbers, strings, tuples and dicts only.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import attrs
from attrs import define, field, frozen

from inferno.errors import RequestError


def _between(low: float, high: float = float("inf")) -> Any:
    """Validator: a number in [low, high], or None where the field allows it. NaN is in no range."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None and not low <= value <= high:
            wanted = (
                f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
            )
            raise RequestError(
                f"{attribute.name} is {value}", f"It must be {wanted}.", param=attribute.name
            )

    return check


def _texts(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """One text or several, as OpenAI allows."""
    return (value,) if isinstance(value, str) else tuple(value or ())


def _ids(value: Iterable[int] | None) -> tuple[int, ...]:
    return tuple(value or ())


MAX_LOGPROBS = 20
"""How many alternatives a request may ask for at each position, as at OpenAI."""


@frozen(kw_only=True)
class SamplingParams:
    """How one request wants its tokens drawn. Always per request, whatever its neighbours ask.

    Order: penalties and `logit_bias`, then `min_tokens`, then `temperature`, then `top_k`, `top_p`,
    `min_p`.
    """

    temperature: float = field(default=1.0, validator=_between(0))
    """0 takes the most likely token (greedy)."""
    top_k: int = field(default=0, validator=_between(-1))
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = field(default=1.0, validator=_between(0, 1))
    """Keep the fewest most likely tokens whose probabilities sum to at least this."""
    min_p: float = field(default=0.0, validator=_between(0, 1))
    """Keep tokens at least this likely, relative to the most likely one."""
    presence_penalty: float = field(default=0.0, validator=_between(-2, 2))
    """Subtracted once from the logit of every token generated before (OpenAI)."""
    frequency_penalty: float = field(default=0.0, validator=_between(-2, 2))
    """Subtracted from a token's logit for each time it was generated before (OpenAI)."""
    repetition_penalty: float = field(default=1.0, validator=_between(1e-3, 1e3))
    """Divides positive and multiplies negative logits of tokens in prompt or output (CTRL,
    arXiv:1909.05858)."""
    repeat_last_n: int = field(default=-1, validator=_between(-1))
    """How many of the last tokens, prompt included, `repetition_penalty` looks at; -1 all, 0
    none."""
    logit_bias: Mapping[int, float] = field(factory=dict)
    """Added to the logits of these token ids; -100 and below forbids one."""
    seed: int | None = field(default=None)
    """The same seed gives the same draws, whatever the neighbours in the batch."""
    stop: tuple[str, ...] = field(default=(), converter=_texts)
    """Texts that end the output. The text layer watches for them; the engine sees token ids
    only."""
    stop_token_ids: tuple[int, ...] = field(default=(), converter=_ids)
    """Token ids that end the output."""
    max_tokens: int | None = field(default=16, validator=_between(1))
    """Most tokens to generate; None until the context is full."""
    min_tokens: int = field(default=0, validator=_between(0))
    """No stop token before this many tokens."""
    ignore_eos: bool = False
    """Go on past the model's own end-of-text tokens."""
    n: int = field(default=1, validator=_between(1, 128))
    """Independent outputs for the prompt. With a seed, output i draws with seed + i."""
    logprobs: int | None = field(default=None, validator=_between(0, MAX_LOGPROBS))
    """Report each token's log-probability and this many of the most likely alternatives'. The
    model's own distribution: before penalties, bias and temperature."""
    prompt_logprobs: int | None = field(default=None, validator=_between(0, MAX_LOGPROBS))
    """The same for the prompt's tokens."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __attrs_post_init__(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, max_tokens {self.max_tokens}",
                "min_tokens may not exceed max_tokens.",
                param="min_tokens",
            )
        if any(not s for s in self.stop):
            raise RequestError("stop has an empty string", "Leave it out.", param="stop")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


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
    """Leading blocks that the prefix cache was told of."""
    snapshots_at: tuple[int, ...] = ()
    """Positions at which a snapshot of its recurrent states is wanted."""
    last_snapshot: int | None = None
    """Index of the block after which it took its last snapshot, if it took one."""

    @property
    def num_pending(self) -> int:
        """Tokens that are still to be computed."""
        return len(self.token_ids) - self.num_computed

    @property
    def held_row(self) -> int:
        """The row of a sequence that runs."""
        assert self.row is not None, "only running sequences have a row"
        return self.row


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


class BlockUpdate(NamedTuple):
    """Entry `index` of a row's block table in a cache group is `block_id` from this step on."""

    group: int
    row: int
    index: int  # type: ignore[assignment]  # tuple.index is not needed here
    block_id: int


class StateCopy(NamedTuple):
    """The states in one slot are copied to another, in every layer that keeps some."""

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
    """Before the forward pass: what the states of new sequences start from."""
    copies_after: tuple[StateCopy, ...] = ()
    """After it: snapshots."""

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
