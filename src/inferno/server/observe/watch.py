"""Watches generations: for the history of prompts, the replay of turns, and usage."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferno.server.access.usage import UsageBook, Used
from inferno.server.chat.turns import Turns
from inferno.server.observe.prompt_history import LIMIT, History, Seen
from inferno.server.observe.record import current

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM, TextDelta
    from inferno.server.generate.generation import Generation


class Memory:
    """What the server remembers of one model's requests."""

    def __init__(self, num_prompts: int = LIMIT) -> None:
        self.turns, self.usage = Turns(), UsageBook()
        self.history = History(num_prompts)

    def watch(self, generation: Generation, llm: AsyncLLM) -> None:
        """Follow a generation that is open, to its end."""
        generation.watch = _Watch(self, generation, llm)


class _Watch:
    def __init__(self, memory: Memory, generation: Generation, llm: AsyncLLM) -> None:
        prepared, record = generation.prepared, current()
        self._memory, self._generation, self._llm = memory, generation, llm
        self._owner = record.owner if record is not None else ""
        self._outputs: dict[int, list[int]] = {}
        self._cached: dict[int, int] = {}
        self._stored = 0, 0, 0
        self._ended = False
        prompt = prepared.prompts[0]
        self._seen = Seen(
            id=generation.id,
            request_id=record.id if record is not None else "",
            owner=self._owner,
            salt=generation.cache_salt,
            prompt_len=len(prompt),
            token_ids=array("I", prompt),
            rendered=prepared.rendered,
        )
        if prepared.pooling is None:
            memory.history.add(self._seen)

    def take(self, deltas: Sequence[TextDelta]) -> None:
        """Note what is new."""
        n = self._generation.prepared.params.n
        for delta in deltas:
            prompt, output = divmod(delta.index, n)
            if output == 0:
                self._cached[prompt] = max(self._cached.get(prompt, 0), delta.num_cached)
                if prompt == 0:
                    stored = delta.num_host, delta.num_disk, delta.num_remote
                    self._stored = max(self._stored, stored)
            if delta.token_ids:
                self._outputs.setdefault(delta.index, []).extend(delta.token_ids)
            if delta.finish_reason in ("stop", "length", "tool_calls"):
                self._note_turn(delta.index)
        self._seen.num_cached = self._cached.get(0)
        self._seen.num_host, self._seen.num_disk, self._seen.num_remote = self._stored

    def end(self) -> None:
        """The generation has ended, or its client is gone. Later calls do nothing."""
        if self._ended:
            return
        self._ended = True
        prepared = self._generation.prepared
        self._memory.history.ended(self._seen, self._outputs.get(0, ()))
        used = Used(
            requests=1,
            prompt_tokens=sum(map(len, prepared.prompts)),
            cached_tokens=sum(self._cached.values()),
            completion_tokens=self._generation.completion_tokens,
        )
        self._memory.usage.add(self._owner, prepared.session, used)

    def _note_turn(self, index: int) -> None:
        """Remember an output as the turn that the conversation may come back with."""
        prepared, tokenizer = self._generation.prepared, self._llm.preprocessor.tokenizer
        if prepared.rendered is None or tokenizer is None or index not in self._outputs:
            return
        self._memory.turns.note(
            tokenizer,
            prepared.rendered.text,
            prepared.prompts[index // prepared.params.n],
            self._outputs[index],
            self._generation.cache_salt,
        )
