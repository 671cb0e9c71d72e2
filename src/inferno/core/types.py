"""The values that the modules of the engine pass to each other. All are frozen but Sequence, which
the scheduler owns."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import NamedTuple

from attrs import define, field, frozen
from msgspec import Struct

from inferno.contracts import Placed
from inferno.errors import InfernoError
from inferno.plan.draft_cost import Acceptance
from inferno.plan.step_cost import Work
from inferno.request.requests import Logprobs, Request


@define(eq=False)
class Sequence:
    """A request in progress. Only the scheduler writes to it."""

    request: Request
    token_ids: list[int]
    """Prompt and output so far."""
    arrival: int
    """Order of arrival: the tie-break of equal priorities, kept across preemptions."""
    limit: int
    """The most tokens it may have, prompt and output."""
    row: int | None = None
    """Its row in the runner's resident tables while it runs."""
    adapter_slot: int = -1
    """The slot of its adapter while it runs; -1: it has none."""
    num_computed: int = 0
    """Leading tokens whose keys and values are in the cache, and that its states have seen, by the
    committed steps."""
    num_planned: int = 0
    """The same once the steps in flight are committed."""
    num_unknown: int = 0
    """Tokens that steps in flight draw: the runner knows them before the scheduler does."""
    is_verifying: bool = False
    """Whether a step in flight verifies drafts: how many tokens it computes is not known yet."""
    arriving: int | None = None
    """Key of the move that it waits for, if any: until then its blocks are not complete."""
    acceptance: Acceptance = field(factory=Acceptance)
    """Decides how many drafts its steps verify."""
    suggested: tuple[int, ...] = ()
    """Drafts of the engine for its next step, instead of the proposer's."""
    num_cached: int | None = None
    """Prompt tokens found in the cache at first admission; None before it."""
    arrived: float = field(factory=monotonic)
    """When it was queued, in seconds."""
    num_far: int = 0
    """Prompt tokens that a store had to fetch from afar."""
    num_stored: int = 0
    """Those of `num_cached` that were loaded from a store, from afar or not."""
    num_remote: int = 0
    """Those of `num_stored` that another instance computed for it."""
    num_given: int = 0
    """Output tokens that another instance has drawn for it: one at most."""
    waited: float = 0.0
    """Seconds from then to its first admission."""
    keys: list[bytes] = field(factory=list)
    """Content keys of the leading full blocks: see `kvcache.extend_keys`."""
    block_ids: list[int] = field(factory=list)
    """Its blocks: names of tokens' places in every cache group."""
    num_inserted: int = 0
    """Leading blocks already inserted into the prefix cache."""
    draws: bool = field(init=False)
    """Whether tokens are drawn for it: else its prompt becomes an embedding."""
    end_ids: frozenset[int] = field(init=False)
    """Tokens that end it."""
    inner: range = field(init=False)
    """Positions whose output is just a token id unless it ends there (the fast path): not the
    first, and not the last that is allowed."""

    def __attrs_post_init__(self) -> None:
        request = self.request
        self.draws = request.pooling is None
        self.end_ids = frozenset((*request.eos_token_ids, *request.params.stop_token_ids))
        self.inner = range(len(request.token_ids) + 1, self.limit - 1)

    @property
    def num_pending(self) -> int:
        """Number of tokens that no step computes yet."""
        return len(self.token_ids) + self.num_unknown - self.num_planned

    @property
    def num_left(self) -> int:
        """How many tokens it may still draw, apart from those that steps in flight draw."""
        return self.limit - len(self.token_ids) - self.num_unknown

    @property
    def held_row(self) -> int:
        """The row of a running sequence."""
        assert self.row is not None, "only running sequences have a row"
        return self.row

    def record_drafts(self, num_drafts: int, num_accepted: int) -> None:
        self.acceptance.update(num_drafts, num_accepted, wanted=self.is_verifying)
        if self.is_verifying:  # then no other step in flight has a slice of it
            self.is_verifying = False
            self.num_planned = self.num_computed


class Slice(Struct, frozen=True, array_like=True, gc=False):
    """One sequence's share of a step: `num_tokens` tokens from `start` on, then drafts. A step may
    hold hundreds: a named tuple takes five times as long to make as a struct."""

    row: int
    start: int
    num_tokens: int
    samples: bool
    """Whether to sample after its last token: false inside a chunked prompt, and for embeddings."""
    num_drafts: int = 0
    """The most draft tokens to propose after its last token and to verify. There are slots for
    them; the runner may propose fewer."""


@frozen(eq=False)
class NewSequence:
    """A sequence that takes a row, with all that the runner needs to know. Later steps name only
    the row."""

    row: int
    request: Request
    token_ids: tuple[int, ...]
    """Everything known so far: the prompt, and after a preemption the output too."""
    num_computed: int = 0
    """Leading tokens that were found in the cache."""
    adapter_slot: int = -1
    """The slot of its adapter; -1: it has none."""

    @classmethod
    def of(cls, sequence: Sequence) -> NewSequence:
        known = tuple(sequence.token_ids)
        slot, computed = sequence.adapter_slot, sequence.num_computed
        return cls(sequence.held_row, sequence.request, known, computed, slot)


class BlockUpdate(NamedTuple):
    """Entry `index` of a row's block table in a cache group is `block_id` from this step on."""

    group: int
    row: int
    index: int  # type: ignore[assignment]  # tuple.index is not needed here
    block_id: int


class Copy(NamedTuple):
    """Copy one place of a cache group to another, in every layer of the group."""

    group: int
    source: int | None
    """None: zeros."""
    target: int


class Move(NamedTuple):
    """The same before the forward pass, but a sequence waits for it: it has no slice until the
    runner reports the move's key, once it is done."""

    key: int
    group: int
    source: int
    target: int


@frozen(eq=False)
class Step:
    """The scheduler's plan for one forward pass. Carries what is new, never the context (O(new)
    host work)."""

    slices: tuple[Slice, ...]
    new_sequences: tuple[NewSequence, ...] = ()
    block_updates: tuple[BlockUpdate, ...] = ()
    moves: tuple[Move, ...] = ()
    copies_before: tuple[Copy, ...] = ()
    """Before the forward pass: what new sequences resume from."""
    copies_after: tuple[Copy, ...] = ()
    """After it: what later ones may resume from."""
    drafts: Mapping[int, tuple[int, ...]] = field(factory=dict)
    """Drafts by row, where they are not the proposer's."""
    saves: tuple[Placed, ...] = ()
    """Blocks to copy to a store, before anything else."""
    loads: tuple[Placed, ...] = ()
    """Blocks to copy from a store, then."""

    @property
    def num_tokens(self) -> int:
        return sum([s.num_tokens + s.num_drafts for s in self.slices])

    @property
    def work(self) -> tuple[Work, bool]:
        """What it computes, and whether every sequence has one token only, and perhaps drafts."""
        num_tokens = self.num_tokens
        if num_tokens == len(self.slices) or all(s.num_tokens == 1 for s in self.slices):
            return Work(num_tokens, sum([s.start for s in self.slices])), True
        pairs = sum([s.num_tokens * (s.start + s.num_tokens / 2) for s in self.slices])
        return Work(num_tokens, pairs), False

    @property
    def is_empty(self) -> bool:
        return not (self.slices or self.moves or self.saves or self.loads)


class Verified(NamedTuple):
    """How many drafts a slice verified, and how many of them were accepted."""

    num_drafts: int
    num_accepted: int


@frozen(eq=False)
class Sampled:
    """The results of a step."""

    token_ids: list[int]
    """The tokens that its sampling slices drew, in order: one for each slice, and one more for each
    accepted draft."""
    verified: Mapping[int, Verified] = field(factory=dict)
    """By row, for slices with drafts."""
    logprobs: Mapping[int, Logprobs] = field(factory=dict)
    """By position in `token_ids`, if requested."""
    prompt_logprobs: Mapping[int, tuple[Logprobs | None, ...]] = field(factory=dict)
    """By row, once the row's prompt is complete."""
    embeddings: Mapping[int, tuple[float, ...]] = field(factory=dict)
    """By row, once the row's prompt is complete."""
    moved: tuple[int, ...] = ()
    """Keys of the moves that are done."""
    failed: Mapping[str, InfernoError] = field(factory=dict)
    """By request id: its logits processors failed, or the model's numbers are not finite."""
