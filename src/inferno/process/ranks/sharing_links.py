"""Rank 0's end of a link between two instances: each rank is linked to the other instance's rank of
its number, and sends or pulls its share of a prompt's blocks there.

In the decoding end all ranks ask under one random name, at the instance that rank 0's end has
chosen. A block is near once it has come to all of them, which followers tell as they answer a fetch
of stored blocks. If not all has come to all ranks, they ask another instance for the rest, if rank
0's end chooses one.

In the prefilling end rank 0 begins with a prompt once all ranks were asked for it. Followers are
told between which steps it begins and ends, and so save what rank 0 saves.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import cast

from attrs import define, evolve, field

from inferno.contracts import LinkedPrompt, LinkIndex, Placed
from inferno.errors import InfernoError
from inferno.process.ranks.messages import Asked, StoreCall
from inferno.process.ranks.sharing_blocks import Fetch, Part, SharedStore

_NAME_BYTES = 16
ANOTHER_RANK = "rank"
"""Cause of a fallback: another rank got less of the prompt than this one."""


@define(eq=False)
class _Ask(Fetch):
    """A prompt that was asked for, and that has not ended on every rank."""

    prompt: LinkedPrompt = field(kw_only=True)

    @property
    def num_parts(self) -> int:
        return sum(groups.bit_count() for _, groups in self.wanted)


@define(eq=False)
class SharedLink(SharedStore):
    """Both halves of rank 0's end (`LinkIndex`, `Mover`), together with those of the others."""

    is_link = True
    _asked: dict[str, LinkedPrompt] = field(factory=dict, init=False)
    """Prompts of the other end that wait until all ranks were asked for them."""
    _ranks: defaultdict[str, set[int]] = field(factory=lambda: defaultdict(set), init=False)
    """By prompt, the other ranks that were asked for it, and have not been told that it is unwanted
    since."""
    _begun: dict[str, frozenset[bytes]] = field(factory=dict, init=False)
    """Prompts that are computed, with their keys."""
    _cut: set[str] = field(factory=set, init=False)
    """Those of them that one rank need not go on with."""
    _cut_now: list[str] = field(factory=list, init=False)
    """Those of these that have not been aborted yet."""
    _unsaved: Counter[bytes] = field(factory=Counter, init=False)
    """Blocks that were noted, and are saved with the next step."""
    _ending: dict[str, tuple[StoreCall, set[bytes]]] = field(factory=dict, init=False)
    """Ends of prompts that followers are told after the step that saves these blocks."""

    @property
    def link(self) -> LinkIndex:
        return cast(LinkIndex, self.index)

    # --- the decoding end -------------------------------------------------------------------------

    def ask(self, prompt: LinkedPrompt, keys: Sequence[bytes], wanted: Sequence[int]) -> int:
        named = evolve(prompt, name=secrets.token_bytes(_NAME_BYTES))
        if instance := self.link.ask(named, keys, wanted):
            self._have_asked(named, [*zip(keys, wanted, strict=True)], instance)
        return instance

    def _have_asked(
        self, prompt: LinkedPrompt, wanted: Sequence[tuple[bytes, int]], instance: int
    ) -> None:
        """Note what was asked for, and let the other ranks ask for their parts."""
        number = next(self._numbers)
        self._fetches[number] = _Ask(prompt.id, wanted, self.others.ranks - 1, prompt=prompt)
        self._tell(
            StoreCall(
                "ask",
                prompt.id,
                [key for key, _ in wanted],
                [groups for _, groups in wanted],
                number=number,
                name=prompt.name,
                instance=instance,
            )
        )

    def _is_vain(self, fetch: Fetch) -> bool:
        """Whether no part of a prompt can come to all ranks: one of them has got none."""
        if not isinstance(fetch, _Ask):
            return False
        here = not fetch.ended or any(self.index.near(key) & each for key, each in fetch.wanted)
        return not here or bool(fetch.lost) and len(fetch.lost) == fetch.num_parts

    def _asks_again(self, fetch: _Ask) -> bool:
        """Ask another instance for what has not come to all ranks. Returns False if there is no
        such part, or none is to be asked."""
        wanted, is_vain = fetch.wanted, self._is_vain(fetch)
        if not is_vain:
            lost, near = Counter[bytes](), self.index.near
            for key, bit in fetch.lost:
                lost[key] += bit
            wanted = [(key, groups & (~near(key) | lost[key])) for key, groups in wanted]
        keys, rest = [key for key, _ in wanted], [groups for _, groups in wanted]
        if not any(rest) or not (instance := self.link.ask(fetch.prompt, keys, rest)):
            return False
        if not is_vain:
            super()._end(fetch)
        self._have_asked(fetch.prompt, wanted, instance)
        return True

    def _end(self, fetch: Fetch) -> None:
        if isinstance(fetch, _Ask):
            if self._asks_again(fetch):
                return
            if fetch.lost - self._not_here(fetch):
                fallbacks = self.usage.fallbacks
                fallbacks[ANOTHER_RANK] = fallbacks.get(ANOTHER_RANK, 0) + 1
        if not self._is_vain(fetch):
            super()._end(fetch)
        elif not self._held.get(fetch.owner):  # others need not wait for what does not count
            self.index.release(fetch.owner)
            self._tell(StoreCall("release", fetch.owner))

    def _not_here(self, fetch: Fetch) -> set[Part]:
        """Return what did not come to this rank either: that is not another one's fault."""
        if not fetch.ended:
            return set()
        return {part for part in fetch.lost if not self.index.near(part[0]) & part[1]}

    def _lose(self, part: Part) -> None:
        """Do nothing: unlike stored blocks, those of a link are not promised before they come."""

    def take_first_tokens(self) -> Sequence[tuple[str, int]]:
        return self.link.take_first_tokens()

    # --- the prefilling end -----------------------------------------------------------------------

    @property
    def is_asked(self) -> bool:
        try:
            self._hear()
        except InfernoError:  # a rank has ended: the next step raises it, in `take_asked`
            return True
        if self.link.is_asked:
            self._take_own()
        return bool(self._cut_now or self._next())

    def take_asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        self._hear()
        self._take_own()
        cut, self._cut_now = self._cut_now, []
        return [self._asked.pop(each) for each in self._next()], cut

    def _take_own(self) -> None:
        """Take what this rank was asked for."""
        prompts, unwanted = self.link.take_asked()
        for prompt in prompts:
            if prompt.name:
                self._asked[prompt.id] = prompt
            else:
                self.link.end(prompt.id, "each rank is asked for its share, under one name")
        for prompt_id in unwanted:
            self._asked.pop(prompt_id, None)
            self._cut_short(prompt_id)

    def _next(self) -> list[str]:
        """Return the prompts that all ranks were asked for, and that have not begun."""
        ranks = self.others.ranks - 1
        return [each for each in self._asked if len(self._ranks.get(each, ())) == ranks]

    def _take_asked(self, told: Asked) -> None:
        for prompt_id in told.prompts:
            self._ranks[prompt_id].add(told.rank)
        for prompt_id in told.unwanted:
            self._ranks[prompt_id].discard(told.rank)
            if not self._ranks[prompt_id]:
                del self._ranks[prompt_id]
            self._cut_short(prompt_id)
            if self._asked.pop(prompt_id, None) is not None:
                self.link.end(prompt_id)

    def _cut_short(self, prompt_id: str) -> None:
        """Let a prompt be aborted that one rank need not go on with."""
        if prompt_id in self._begun and prompt_id not in self._cut:
            self._cut.add(prompt_id)
            self._cut_now.append(prompt_id)

    def begin(self, prompt_id: str, keys: Sequence[bytes]) -> None:
        self._begun[prompt_id] = frozenset(keys)
        self.link.begin(prompt_id, keys)
        self._tell(StoreCall("begin", prompt_id, [*keys]))

    def end(self, prompt_id: str, error: str = "", token_id: int | None = None) -> None:
        keys = self._begun.pop(prompt_id, frozenset[bytes]())
        if prompt_id in self._cut:
            self._cut.remove(prompt_id)
            if prompt_id in self._cut_now:  # it has ended by itself: it may have failed
                self._cut_now.remove(prompt_id)
            else:  # it was aborted, and what has come to all ranks is right
                error = ""
        self.link.end(prompt_id, error, token_id)
        call = StoreCall("end", prompt_id, error=error)
        if not error and (waits := {key for key in keys if key in self._unsaved}):
            self._ending[prompt_id] = call, waits
        else:
            self._tell(call)

    def note(self, placed: Placed) -> None:
        super().note(placed)
        self._unsaved[placed.key] += 1

    def save(self, saves: Sequence[Placed]) -> None:
        super().save(saves)
        for placed in saves:
            self._unsaved[placed.key] -= 1
            if self._unsaved[placed.key] <= 0:
                self._is_done_with(placed.key)

    def drop(self, key: bytes) -> None:
        self.index.drop(key)
        self._tell(StoreCall("drop", keys=[key]))
        self._is_done_with(key)

    def _is_done_with(self, key: bytes) -> None:
        """Note that a block is saved or dropped. Tell followers of prompts that ended with it."""
        self._unsaved.pop(key, None)
        for prompt_id, (call, waits) in [*self._ending.items()]:
            waits.discard(key)
            if not waits:
                del self._ending[prompt_id]
                self._tell(call)
