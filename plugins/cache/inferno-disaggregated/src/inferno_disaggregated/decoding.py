"""The decoding end: has other instances compute prompts, and receives the parts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
from attrs import define, field
from torch import Tensor

from inferno.contracts import Link, LinkedPrompt, Placed, StoreNeed, StoreUsage
from inferno_disaggregated import messages
from inferno_disaggregated.client import Asked, Came, Client, First, News
from inferno_disaggregated.instances import Instance, best
from inferno_disaggregated.mailbox import Mailbox
from inferno_disaggregated.pieces import Bytes, GroupCopies

MOST_PROMPTS = 32
"""Most prompts on their way, for each instance that there is: further ones are computed here."""
AGAIN = ("lost", "full", "refused")
"""Causes for which another instance is asked for the rest of a prompt. After `failed` it is asked
for all of it; after `late` no time is left."""
Place = tuple[Bytes, int]
"""A row of parts."""


@define(eq=False)
class Coming:
    """A prompt that was sent out."""

    prompt: LinkedPrompt
    number: int
    keys: Sequence[bytes]
    nbytes: int
    """Of all that was asked for."""
    lacking: Sequence[int]
    """Of each block, the groups that were asked for."""
    wanted: list[int]
    """Those of them that have not come."""
    deadline: float
    asked: list[Instance] = field(factory=list)
    """The instances that were asked, one after another."""
    parts: list[tuple[bytes, int]] = field(factory=list)
    """What has come: keys and groups."""
    ended: bool = False
    cause: str = ""
    """Why not all of it has come, once it has ended."""
    holders: set[str] = field(factory=set)
    """Requests that need what has come: its own, and those that load some of it."""


@define(eq=False)
class Decoding:
    """Index and mover."""

    need: StoreNeed
    link: Link
    instances: Sequence[Instance]
    news: Mailbox[News]
    """What all instances send."""
    _usage: StoreUsage = field(factory=StoreUsage)
    _near: dict[bytes, dict[int, dict[int, Place]]] = field(factory=dict)
    """By key, group and prompt."""
    _coming: dict[str, Coming] = field(factory=dict)
    _by_number: dict[int, Coming] = field(factory=dict)
    _held: dict[str, list[Coming]] = field(factory=dict)
    """By request, what it holds."""
    _numbers: itertools.count[int] = field(factory=itertools.count)
    _ended: list[str] = field(factory=list)
    _first: list[tuple[str, int]] = field(factory=list)
    """First tokens that have come, by request."""
    _copies: list[GroupCopies] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._usage.instances = {each.url: each.usage for each in self.instances}

    # --- LinkIndex --------------------------------------------------------------------------------

    def ask(self, prompt: LinkedPrompt, keys: Sequence[bytes], wanted: Sequence[int]) -> int:
        if (before := self._coming.get(prompt.id)) is not None:
            return self._ask_again(before, prompt, wanted)
        sizes = self.need.sizes
        nbytes = sum(sizes[g] for each in wanted for g in range(len(sizes)) if each >> g & 1)
        if not any(each.client.joined for each in self.instances):
            self._fall_back("not connected")
            return 0
        on_their_way = sum(coming.nbytes for coming in self._coming.values())
        most = MOST_PROMPTS * len(self.instances)
        busy = len(self._coming) >= most or on_their_way + nbytes > self.link.buffer
        if self._coming and busy:
            self._fall_back("busy")
            return 0
        deadline = time.monotonic() + self.link.timeout
        number = next(self._numbers)
        coming = Coming(prompt, number, keys, nbytes, [*wanted], [*wanted], deadline)
        if not self._send(coming):
            self._fall_back("not connected")  # lost since the check above
            return 0
        self._begin(coming)
        self._usage.linked_prompts += 1
        return self._number_of(coming)

    def _begin(self, coming: Coming) -> None:
        self._hold(coming.prompt.id, coming)
        self._coming[coming.prompt.id] = self._by_number[coming.number] = coming

    def _number_of(self, coming: Coming) -> int:
        """Return which address was asked last, from 1."""
        return 1 + [*self.instances].index(coming.asked[-1])

    def _ask_again(self, before: Coming, prompt: LinkedPrompt, wanted: Sequence[int]) -> int:
        """Ask another instance for what has not come to all ranks."""
        if not before.ended and before.holders == {prompt.id}:  # one rank got nothing
            self._forget(before)
            self._held[prompt.id].remove(before)
        before.ended = True
        self._ended = [each for each in self._ended if each != prompt.id]
        if not before.cause:  # all came to this rank, or would have
            before.asked[-1].ended(before.number, before.keys, "rank")
        able = before.cause in ("", *AGAIN) or (before.cause == "failed" and not before.parts)
        number, deadline = next(self._numbers), before.deadline
        asked = [*before.asked]
        rest = [*wanted], [*wanted]
        coming = Coming(prompt, number, before.keys, before.nbytes, *rest, deadline, asked)
        if not able or time.monotonic() > deadline or not self._send(coming):
            if before.cause and not prompt.instance:
                self._fall_back(before.cause)
            return 0
        self._begin(coming)
        return self._number_of(coming)

    def _send(self, coming: Coming) -> bool:
        """Ask the best instance that was not asked for this prompt yet, or the one that the first
        rank has asked. Returns whether there was one."""
        prompt, count = coming.prompt, len(coming.prompt.token_ids)
        among = self.instances[prompt.instance - 1 :][:1] if prompt.instance else self.instances
        instance = best(among, coming.asked, coming.keys, count)
        if instance is None:
            return False
        message = messages.Ask(
            coming.number,
            np.asarray(prompt.token_ids, "<i4").tobytes(),
            [*coming.wanted],
            prompt.salt,
            prompt.adapter,
            prompt.name,
            prompt.drawing,
        )
        coming.asked.append(instance)
        instance.ask(Asked(message, coming.deadline), coming.keys, count)
        return True

    is_asked = False

    def take_asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        return (), ()

    def begin(self, prompt_id: str, keys: Sequence[bytes]) -> None:
        return None

    def end(self, prompt_id: str, error: str = "", token_id: int | None = None) -> None:
        return None

    def take_first_tokens(self) -> Sequence[tuple[str, int]]:
        first, self._first = self._first, []
        return first

    def _fall_back(self, cause: str) -> None:
        self._usage.fallbacks[cause] = self._usage.fallbacks.get(cause, 0) + 1

    # --- StoreIndex -------------------------------------------------------------------------------

    @property
    def usage(self) -> StoreUsage:
        for each in self.instances:
            each.tell()
        return self._usage

    @property
    def client(self) -> Client:
        """The first instance's."""
        return self.instances[0].client

    def groups_of(self, key: bytes) -> int:
        return self.near(key)

    def near(self, key: bytes) -> int:
        return sum(1 << group for group in self._near.get(key, ()))

    def note(self, placed: Placed) -> None:
        return None

    def drop(self, key: bytes) -> None:
        """Do nothing: what has come is one prompt's, which may be about to load it, and goes with
        that."""

    def touch(self, keys: Sequence[bytes]) -> None:
        return None

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        """What has come for a request stays until `release`: so what has come for others is held,
        which may have ended or be dropped before these parts are loaded."""
        for key, groups in wanted:
            for group, places in self._near.get(key, {}).items():
                if groups >> group & 1:
                    self._hold(owner, self._by_number[next(iter(places))])
        self._ended.append(owner)

    def _hold(self, owner: str, coming: Coming) -> None:
        if owner not in coming.holders:
            coming.holders.add(owner)
            self._held.setdefault(owner, []).append(coming)

    def pin(self, keys: Sequence[bytes], owner: str, until: float) -> int:
        return 0

    def release(self, owner: str) -> None:
        if (coming := self._coming.pop(owner, None)) is not None:
            coming.ended = True
        for coming in self._held.pop(owner, ()):
            coming.holders.discard(owner)
            if not coming.holders:
                self._forget(coming)

    def _forget(self, coming: Coming) -> None:
        """Forget a prompt, and have its instances do so."""
        del self._by_number[coming.number]
        self._discard(coming)
        coming.asked[-1].ended(coming.number, coming.keys, "")
        for instance in coming.asked:  # one that was lost may be back, and still hold it
            instance.client.release(coming.number)

    # --- Mover ------------------------------------------------------------------------------------

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self._copies = [GroupCopies(pieces) for pieces in groups]

    def save(self, saves: Sequence[Placed]) -> None:
        assert not saves, "nothing is saved in this end"

    def load(self, loads: Sequence[Placed]) -> None:
        for group, copies in enumerate(self._copies):
            runs = dict[int, tuple[Bytes, list[int], list[int]]]()
            for placed in loads:
                if (place := placed.places[group]) is not None:
                    parts, row = next(iter(self._near[placed.key][group].values()))
                    _, places, rows = runs.setdefault(id(parts), (parts, [], []))
                    places.append(place)
                    rows.append(row)
            for parts, places, rows in runs.values():
                copies.into(places, parts, rows)
                self._usage.loaded_bytes += len(rows) * parts.shape[1]

    def poll(self) -> Sequence[str]:
        for news in self.news.take():
            coming = self._by_number.get(news.transfer)
            if coming is None or coming.ended:
                continue
            if isinstance(news, Came):
                self._came(coming, news)
            elif isinstance(news, First):
                self._first.append((coming.prompt.id, news.token_id))
            else:
                self._no_more(coming, news.cause)
        ended, self._ended = self._ended, []
        for each in self.instances:
            each.tell()
        return ended

    def _no_more(self, coming: Coming, cause: str) -> None:
        """Note that no more of a prompt comes from the instance asked last, and ask another one for
        the rest, or for all after a failure, if the cause allows. Several ranks ask together, once
        the first one says so (`ask`)."""
        coming.asked[-1].ended(coming.number, coming.keys, cause)
        starts_over = cause == "failed" and coming.holders == {coming.prompt.id}
        if starts_over:  # what has come may be wrong too
            self._discard(coming)
            coming.wanted = [*coming.lacking]
        is_shared, able = bool(coming.prompt.name), starts_over or cause in AGAIN
        if not is_shared and able and any(coming.wanted) and self._send(coming):
            return
        coming.ended, coming.cause = True, cause
        self._ended.append(coming.prompt.id)
        if cause and not is_shared:
            self._fall_back(cause)

    def _came(self, coming: Coming, came: Came) -> None:
        if came.parts is None:
            self._usage.lost_parts += len(came.indices)
            return
        self._usage.linked_bytes += came.parts.nbytes
        for row, index in enumerate(came.indices):
            key = coming.keys[index]
            places = self._near.setdefault(key, {}).setdefault(came.group, {})
            places[coming.number] = came.parts, row
            coming.parts.append((key, came.group))
            coming.wanted[index] &= ~(1 << came.group)

    def _discard(self, coming: Coming) -> None:
        """Use nothing of a prompt that nobody needs, or that the other end could not finish."""
        for key, group in coming.parts:
            groups = self._near.get(key, {})
            if (places := groups.get(group)) is not None:
                places.pop(coming.number, None)
                if not places:
                    del groups[group]
                if not groups:
                    del self._near[key]
        coming.parts.clear()

    def fileno(self) -> int | None:
        return self.news.descriptor

    def close(self) -> None:
        for client in (client for each in self.instances for client in each.clients):
            client.close()
