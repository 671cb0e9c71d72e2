"""The decoding end: parts of prompts that another instance computes come near."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
from attrs import define, field
from torch import Tensor

from inferno.contracts import Link, LinkedPrompt, Placed, StoreNeed, StoreUsage
from inferno_disaggregated import messages
from inferno_disaggregated.client import Asked, Came, Client
from inferno_disaggregated.pieces import Bytes, GroupCopies

MOST_PROMPTS = 32
"""Prompts on their way: further ones are computed here."""
Place = tuple[Bytes, int]
"""A row of parts."""


@define(eq=False)
class Coming:
    """A prompt that was sent out."""

    owner: str
    number: int
    keys: Sequence[bytes]
    nbytes: int
    """Of all that was asked for."""
    parts: list[tuple[bytes, int]] = field(factory=list)
    """What has come: keys and groups."""
    ended: bool = False
    holders: set[str] = field(factory=set)
    """Requests that need what has come: its own, and those that load some of it."""


@define(eq=False)
class Decoding:
    """Index and mover."""

    need: StoreNeed
    link: Link
    client: Client
    usage: StoreUsage = field(factory=StoreUsage)
    _near: dict[bytes, dict[int, dict[int, Place]]] = field(factory=dict)
    """By key, group and prompt."""
    _coming: dict[str, Coming] = field(factory=dict)
    _by_number: dict[int, Coming] = field(factory=dict)
    _held: dict[str, list[Coming]] = field(factory=dict)
    """By request, what it holds."""
    _numbers: itertools.count[int] = field(factory=itertools.count)
    _ended: list[str] = field(factory=list)
    _copies: list[GroupCopies] = field(factory=list)

    # --- LinkIndex --------------------------------------------------------------------------------

    def ask(self, prompt: LinkedPrompt, keys: Sequence[bytes], wanted: Sequence[int]) -> bool:
        sizes = self.need.sizes
        nbytes = sum(sizes[g] for each in wanted for g in range(len(sizes)) if each >> g & 1)
        if not self.client.joined:
            self._fall_back("not connected")
            return False
        on_their_way = sum(coming.nbytes for coming in self._coming.values())
        busy = len(self._coming) >= MOST_PROMPTS or on_their_way + nbytes > self.link.buffer
        if self._coming and busy:
            self._fall_back("busy")
            return False
        coming = Coming(prompt.id, next(self._numbers), keys, nbytes)
        self._hold(prompt.id, coming)
        self._coming[prompt.id] = self._by_number[coming.number] = coming
        self.usage.linked_prompts += 1
        message = messages.Ask(
            coming.number,
            np.asarray(prompt.token_ids, "<i4").tobytes(),
            list(wanted),
            prompt.salt,
            prompt.adapter,
            prompt.name,
        )
        self.client.ask(Asked(message, time.monotonic() + self.link.timeout))
        return True

    is_asked = False

    def take_asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        return (), ()

    def begin(self, prompt_id: str, keys: Sequence[bytes]) -> None:
        return None

    def end(self, prompt_id: str, error: str = "") -> None:
        return None

    def _fall_back(self, cause: str) -> None:
        self.usage.fallbacks[cause] = self.usage.fallbacks.get(cause, 0) + 1

    # --- StoreIndex -------------------------------------------------------------------------------

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
                del self._by_number[coming.number]
                self._discard(coming)
                self.client.release(coming.number)

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
                self.usage.loaded_bytes += len(rows) * parts.shape[1]

    def poll(self) -> Sequence[str]:
        for news in self.client.news.take():
            coming = self._by_number.get(news.transfer)
            if coming is None or coming.ended:
                continue
            if isinstance(news, Came):
                self._came(coming, news)
                continue
            coming.ended = True
            self._ended.append(coming.owner)
            if news.cause:
                self._fall_back(news.cause)
            if news.cause == "failed" and coming.holders == {coming.owner}:
                self._discard(coming)
        ended, self._ended = self._ended, []
        return ended

    def _came(self, coming: Coming, came: Came) -> None:
        if came.parts is None:
            self.usage.lost_parts += len(came.indices)
            return
        self.usage.linked_bytes += came.parts.nbytes
        for row, index in enumerate(came.indices):
            key = coming.keys[index]
            places = self._near.setdefault(key, {}).setdefault(came.group, {})
            places[coming.number] = came.parts, row
            coming.parts.append((key, came.group))

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
        return self.client.news.descriptor

    def close(self) -> None:
        self.client.close()
