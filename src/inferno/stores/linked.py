"""Stores that link two instances: one computes prompts, the other pulls their blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

import msgspec
from attrs import define, evolve, field
from msgspec import Struct

from inferno.contracts import MOST_DRAWING, Link, LinkedPrompt, LinkIndex, Placed
from inferno.errors import RequestError
from inferno.request.requests import (
    AdapterRef,
    EngineOutput,
    EngineStats,
    FinishReason,
    Request,
)
from inferno.request.sampling_params import SamplingParams
from inferno.stores.keys import extend_keys
from inferno.stores.speeds import Speeds
from inferno.stores.stacked import Stacked
from inferno.stores.storing import Storing, is_held

if TYPE_CHECKING:
    from inferno.core.kvcache import Match
    from inferno.core.types import Sequence as Sequence_

_ONE = SamplingParams(temperature=0, max_tokens=1)
"""How a prompt is computed whose first token the other end draws: the one drawn here is not used.
"""


class Drawing(Struct):
    """How the first token of a prompt is drawn (`LinkedPrompt.drawing`)."""

    params: SamplingParams
    eos_token_ids: tuple[int, ...]


_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Drawing).decode


def drawn_elsewhere(request: Request) -> SamplingParams | None:
    """Return how the other end draws a request's first token; None if that takes what only this end
    has: masks, scores, plugins."""
    params = request.params
    masks = params.structured_outputs, params.reasoning, params.bad_words, params.logits_processors
    scores = params.logprobs, params.prompt_logprobs, request.pooling
    if any(masks) or any(each is not None for each in scores):
        return None
    most = min(1, params.min_tokens)
    return evolve(params, max_tokens=1, min_tokens=most, n=1, stop=(), seed=request.seed)


def _drawing_of(request: Request) -> bytes:
    if (params := drawn_elsewhere(request)) is None:
        return b""
    drawing = _encode(Drawing(params, request.eos_token_ids))
    return drawing if len(drawing) <= MOST_DRAWING else b""


def _drawing(request: Request, drawing: bytes) -> Request:
    """Return a prompt's request, with its one token drawn as the other end asks. Raises
    RequestError, and msgspec's errors."""
    if not drawing:
        return request
    asked = _decode(drawing)
    request = evolve(request, params=asked.params, eos_token_ids=asked.eos_token_ids)
    # Whatever was asked for, one token is drawn, without masks.
    return evolve(request, params=drawn_elsewhere(request) or _ONE)


@define(eq=False)
class Linked(Storing):
    """One end of a link, with tiers or without."""

    stacked: Stacked | None = field(init=False)
    """The store, if it has tiers too."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.stacked = self.index if isinstance(self.index, Stacked) else None
        if self.stacked is not None:  # what comes over a link tells nothing of what tiers cost
            self.speeds = Speeds(self.stacked.tiers_index.usage)

    def _unsaved(self, sequence: Sequence_, count: int) -> Iterator[Placed]:
        # A step saves before it loads, so what it is about to load is not in the cache yet.
        loading = {placed.key for placed in self.loads}
        for placed in super()._unsaved(sequence, count):
            if placed.key not in loading:
                yield placed

    def take_news(self) -> tuple[tuple[Placed, ...], tuple[Placed, ...]]:
        saves, loads = super().take_news()
        if self.stacked is not None:
            for placed in loads:  # tiers save what came, and a link what is kept
                self.stacked.note(placed)
        return saves, loads

    def drop_news(self) -> bool:
        self.loads = []  # no step loads them, so `take_news` must not note them
        return super().drop_news()

    def gauge(self, stats: EngineStats) -> None:
        super().gauge(stats)
        usage = self.index.usage
        stats.linked_prompts, stats.linked_bytes = usage.linked_prompts, usage.linked_bytes
        stats.fallbacks, stats.instances = usage.fallbacks, usage.instances

    @property
    def link(self) -> LinkIndex:
        return cast(LinkIndex, self.index)


@define(eq=False)
class Decoding(Linked):
    """Prompts that are worth it are sent to the other end, and wait without a row until their
    blocks have come. Tiers are asked first: what they have does not come. Without tiers, nothing is
    saved."""

    terms: Link = field(kw_only=True)
    vocab_size: int = field(kw_only=True)
    _sent: dict[str, bool] = field(factory=dict, init=False)
    """Whether a request was sent out, once that is decided."""
    _first: list[EngineOutput] = field(factory=list, init=False)
    """First tokens that the other end has drawn."""
    _num_first: int = field(default=0, init=False)
    """How many of them the stats lack."""

    def extended(self, sequence: Sequence_, match: Match) -> Match | None:
        """Return the longest match of memory, what is near in the tiers, and what has come over the
        link. None if the request is set aside: until the tiers have brought more near, or until
        all that it was sent out for has come or is lost."""
        owner, kept = sequence.request.id, match
        if self.stacked is not None and not self._sent.get(owner):
            extended = super().extended(sequence, match)
            if extended is None:
                return None
            kept = extended
        if owner not in self._sent and sequence.num_cached is None:
            self._sent[owner] = self._is_worth(sequence, kept) and self._ask(sequence, match, kept)
            if self._sent[owner]:
                self.fetching[owner] = sequence
                return None
        if self.stacked is not None:
            if not self._sent.get(owner):
                return kept
            kept = self._extended(sequence, match, self.stacked.tiers_index.near)
        whole = self._extended(sequence, match, self.index.near)
        if sequence.num_cached is None:
            added = whole.num_blocks - kept.num_blocks if self._sent.get(owner) else 0
            sequence.num_remote = added * self.groups.block_size
        return whole

    def come(self) -> list[Sequence_]:
        come = super().come()
        waiting = {**self.fetching, **{sequence.request.id: sequence for sequence in come}}
        for owner, token_id in self.link.take_first_tokens():
            if (sequence := waiting.get(owner)) is not None:
                self._give(sequence, token_id)
        return come

    def _give(self, sequence: Sequence_, token_id: int) -> None:
        """Begin a sequence's output with a token of the other end, unless that ends it: then the
        token is drawn here. The next token's output says what was cached."""
        goes_on = token_id not in sequence.end_ids and len(sequence.token_ids) + 1 < sequence.limit
        known = len(sequence.token_ids) > len(sequence.request.token_ids)
        if known or not goes_on or not 0 <= token_id < self.vocab_size:
            return
        sequence.token_ids.append(token_id)
        sequence.num_given = 1
        sequence.inner = range(sequence.inner.start + 1, sequence.inner.stop)
        self._first.append(EngineOutput(sequence.request.id, token_id))

    def answered(self, outputs: list[EngineOutput]) -> list[EngineOutput]:
        """Return the outputs of a step after the first tokens that came before it."""
        if not self._first:
            return outputs
        first, self._first = self._first, []
        self._num_first += len(first)
        return first + outputs

    def gauge(self, stats: EngineStats) -> None:
        super().gauge(stats)
        stats.generated_tokens += self._num_first
        self._num_first = 0

    def release(self, owner: str) -> None:
        super().release(owner)
        self._sent.pop(owner, None)

    def _is_worth(self, sequence: Sequence_, match: Match) -> bool:
        cached, length = match.num_blocks * self.groups.block_size, len(sequence.token_ids)
        # The other end has no pixels.
        return (
            not sequence.request.images
            and length >= self.terms.min_tokens
            and (not cached or length - cached >= self.terms.min_uncached)
        )

    def _ask(self, sequence: Sequence_, match: Match, kept: Match) -> bool:
        """Ask for the parts that a prompt lacks. `match` is what memory has of it, `kept` what
        memory and the tiers have."""
        adapter, salt = sequence.request.content
        tokens = sequence.request.token_ids
        count = (len(tokens) - 1) // self.groups.block_size
        wanted, near = [0] * count, list[tuple[bytes, int]]()
        kept_near = self.stacked.tiers_index.near if self.stacked is not None else lambda key: 0
        for group in self.groups.groups:
            for i in group.needs(count):
                if not is_held(group, match.known, i):
                    wanted[i] |= 1 << group.index
        for i, group in self.missing(kept):
            if (bit := 1 << group.index) & kept_near(sequence.keys[i]):
                wanted[i] &= ~bit
                near.append((sequence.keys[i], bit))
        prompt = LinkedPrompt(
            id=sequence.request.id,
            token_ids=tokens,
            salt=salt,
            adapter=adapter,
            drawing=_drawing_of(sequence.request),
        )
        if not (any(wanted) and self.link.ask(prompt, sequence.keys[:count], wanted)):
            return False
        if self.stacked is not None:
            self.stacked.hold(near, sequence.request.id)
        return True

    def save(self, sequence: Sequence_, count: int) -> None:
        if self.stacked is not None:
            super().save(sequence, count)
        else:
            self._saved[sequence.held_row] = count


@define(eq=False)
class Prefilling(Linked):
    """Prompts of the other ends run as requests of their own, and what they lack of their blocks is
    saved for them. Without tiers, nothing is loaded."""

    adapters: Mapping[str, AdapterRef] = field(kw_only=True)
    """Those that are loaded, by digest: others' prompts may need no other."""
    _owned: dict[str, bool] = field(factory=dict)
    """Requests of the other ends in progress, and whether their first tokens are sent."""

    def extended(self, sequence: Sequence_, match: Match) -> Match | None:
        return match if self.stacked is None else super().extended(sequence, match)

    def _needless(self, key: bytes) -> int:
        return super()._needless(key) if self.stacked is None else self.stacked.needless(key)

    @property
    def is_asked(self) -> bool:
        return self.link.is_asked

    @property
    def listens(self) -> int | None:
        # Not the tiers' descriptor, which stays readable until a step polls: none does at rest.
        return (self.mover if self.stacked is None else self.stacked.link_mover).fileno()

    def serve(self, submit: Callable[[Request], object], abort: Callable[[str], object]) -> None:
        """Begin what the other ends have asked for since, and end what they no longer want."""
        prompts, unwanted = self.link.take_asked()
        for prompt in prompts:
            adapter, keys = self.adapters.get(prompt.adapter), list[bytes]()
            if prompt.adapter and adapter is None:
                self.link.end(prompt.id, "the prompt's adapter is not loaded here")
                continue
            tokens, size = prompt.token_ids, self.groups.block_size
            if not tokens:
                self.link.end(prompt.id, "it has no tokens")
                continue
            extend_keys(keys, tokens, size, prompt.salt, prompt.adapter)
            request = Request(
                id=prompt.id,
                token_ids=tokens,
                params=_ONE,
                cache_salt=prompt.salt,
                adapter=adapter,
            )
            try:
                submit(_drawing(request, prompt.drawing))
            except RequestError as error:
                self.link.end(prompt.id, error.cause)
                continue
            except msgspec.MsgspecError as error:
                cause = f"how its first token is to be drawn cannot be read: {error}"
                self.link.end(prompt.id, cause)
                continue
            self._owned[prompt.id] = bool(prompt.drawing)
            self.link.begin(prompt.id, keys)
        for prompt_id in unwanted:
            if prompt_id in self._owned:
                abort(prompt_id)
                self._end(prompt_id, "it is no longer wanted")

    def answered(self, outputs: list[EngineOutput]) -> list[EngineOutput]:
        """Take the outputs of the other ends' prompts from among others."""
        ours = [output for output in outputs if output.request_id in self._owned]
        if not ours:
            return outputs
        for output in ours:
            if output.finish is FinishReason.ERROR:
                self._end(output.request_id, output.error or "the engine failed")
            else:
                self._end(output.request_id, "", output.token_id)
        ids = {output.request_id for output in ours}
        return [output for output in outputs if output.request_id not in ids]

    def _end(self, prompt_id: str, error: str, token_id: int | None = None) -> None:
        draws = self._owned.pop(prompt_id, False)
        self.link.end(prompt_id, error, token_id if draws else None)
