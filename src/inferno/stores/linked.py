"""Stores that link two instances: one computes prompts, the other pulls their blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from attrs import define, field

from inferno.contracts import Link, LinkedPrompt, LinkIndex
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
from inferno.stores.storing import Storing, is_held

if TYPE_CHECKING:
    from inferno.core.kvcache import Match
    from inferno.core.types import Sequence as Sequence_

_ONE = SamplingParams(temperature=0, max_tokens=1)
"""What is asked of a prompt that is computed for another: its one token is not used."""


@define(eq=False)
class Linked(Storing):
    """One end of a link."""

    def gauge(self, stats: EngineStats) -> None:
        super().gauge(stats)
        usage = self.index.usage
        stats.linked_prompts, stats.linked_bytes = usage.linked_prompts, usage.linked_bytes
        stats.fallbacks = usage.fallbacks

    @property
    def link(self) -> LinkIndex:
        return cast(LinkIndex, self.index)


@define(eq=False)
class Decoding(Linked):
    """Prompts that are worth it are sent to the other end, and wait without a row until their
    blocks have come. Nothing is saved."""

    terms: Link = field(kw_only=True)

    def extended(self, sequence: Sequence_, match: Match) -> Match | None:
        """Return the longest match that memory and what has come have together. None if the prompt
        has just been sent out: it is set aside until all has come, or is lost."""
        owner = sequence.request.id
        if owner not in self._fetched and sequence.num_cached is None:
            self._fetched.add(owner)
            if self._is_worth(sequence, match) and self._ask(sequence, match):
                sequence.was_sent = True
                self.fetching[owner] = sequence
                return None
        return self._extended(sequence, match, self.index.near)

    def _is_worth(self, sequence: Sequence_, match: Match) -> bool:
        cached, length = match.num_cached * self.groups.block_size, len(sequence.token_ids)
        # The other end has no pixels.
        return (
            not sequence.request.images
            and length >= self.terms.min_tokens
            and (not cached or length - cached >= self.terms.min_uncached)
        )

    def _ask(self, sequence: Sequence_, match: Match) -> bool:
        adapter, salt = sequence.request.content
        tokens = sequence.request.token_ids
        count = (len(tokens) - 1) // self.groups.block_size
        wanted = [0] * count
        for group in self.groups.groups:
            for i in group.needs(count):
                if not is_held(group, match.known, i):
                    wanted[i] |= 1 << group.index
        prompt = LinkedPrompt(id=sequence.request.id, token_ids=tokens, salt=salt, adapter=adapter)
        return any(wanted) and self.link.ask(prompt, sequence.keys[:count], wanted)

    def save(self, sequence: Sequence_, count: int) -> None:
        self._saved[sequence.held_row] = count


@define(eq=False)
class Prefilling(Linked):
    """Prompts of the other ends run as requests of their own, and what they lack of their blocks is
    saved. Nothing is loaded."""

    adapters: Mapping[str, AdapterRef] = field(kw_only=True)
    """Those that are loaded, by digest: others' prompts may need no other."""
    _owned: set[str] = field(factory=set)
    """Requests of the other ends in progress."""

    def extended(self, sequence: Sequence_, match: Match) -> Match | None:
        return match

    @property
    def is_asked(self) -> bool:
        return self.link.is_asked

    @property
    def listens(self) -> int | None:
        return self.mover.fileno()

    def serve(self, submit: Callable[[Request], object], abort: Callable[[str], object]) -> None:
        """Begin what the other ends have asked for since, and end what they no longer want."""
        if not self.link.is_asked:
            return
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
            try:
                submit(
                    Request(
                        id=prompt.id,
                        token_ids=tokens,
                        params=_ONE,
                        cache_salt=prompt.salt,
                        adapter=adapter,
                    )
                )
            except RequestError as error:
                self.link.end(prompt.id, error.cause)
                continue
            self._owned.add(prompt.id)
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
            failed = output.finish is FinishReason.ERROR
            self._end(output.request_id, output.error or "the engine failed" if failed else "")
        ids = {output.request_id for output in ours}
        return [output for output in outputs if output.request_id not in ids]

    def _end(self, prompt_id: str, error: str) -> None:
        self._owned.discard(prompt_id)
        self.link.end(prompt_id, error)
