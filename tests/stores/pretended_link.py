"""An end of a link without another end, for tests."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import suppress

import torch
from attrs import define, field
from torch import Tensor

from inferno.contracts import LinkedPrompt, Placed, StoreUsage
from inferno.testing.cache_policy import BLOCK_SIZE, VOCAB_SIZE
from inferno.testing.fake_runner import next_token, number_of

Source = dict[tuple[bytes, int], Tensor]
"""Bytes of parts, by key and group, as they were saved first."""


@define(eq=False)
class PretendedLink:
    """Both halves of an end. To a decoding one what it asks for comes as the fake runner would have
    computed it, in whatever order, and sometimes no more comes. A prefilling one wants all of the
    prompts that begin. Neither block may have two contents."""

    num_groups: int
    state: int = -1
    """The group of states."""
    source: Source = field(factory=dict)
    draw: random.Random = field(factory=lambda: random.Random(0))
    usage: StoreUsage = field(factory=StoreUsage)
    wanted: dict[bytes, int] = field(factory=dict)
    noted: dict[bytes, int] = field(factory=dict)
    """Parts that are wanted, and that the next step saves."""
    sent: int = 0
    drawn: int = 0
    """First tokens that were told."""
    _drawing: dict[str, int] = field(factory=dict)
    """Those that may be."""
    _coming: dict[str, list[tuple[bytes, int]]] = field(factory=dict)
    _near: dict[tuple[bytes, int], set[str]] = field(factory=dict)
    """Owners of what has come."""
    _ended: list[str] = field(factory=list)
    _groups: Sequence[Sequence[Tensor]] = ()
    _descriptor: int = field(factory=lambda: os.eventfd(0, os.EFD_NONBLOCK))

    # --- LinkIndex --------------------------------------------------------------------------------

    is_asked = False

    def ask(self, prompt: LinkedPrompt, keys: Sequence[bytes], wanted: Sequence[int]) -> bool:
        pairs = [*zip(keys, wanted, strict=True)]
        parts = [(key, g) for key, bits in pairs for g in range(self.num_groups) if bits >> g & 1]
        assert parts, "it is asked for nothing"
        if self.draw.random() < 0.2:
            return False
        self.expect(prompt.token_ids, keys)
        self._coming[prompt.id] = parts
        self.draw.shuffle(self._coming[prompt.id])
        if prompt.drawing:
            self._drawing[prompt.id] = next_token(prompt.token_ids, VOCAB_SIZE)
        os.eventfd_write(self._descriptor, 1)
        return True

    def expect(self, token_ids: Sequence[int], keys: Sequence[bytes]) -> None:
        """Note what these blocks' parts are."""
        for i, key in enumerate(keys):
            ends = range(i * BLOCK_SIZE + 1, (i + 1) * BLOCK_SIZE + 1)
            numbers = [number_of(tuple(token_ids[:end])) for end in ends]
            for group in range(self.num_groups):
                part = torch.tensor(numbers[-1:] if group == self.state else numbers)
                self._is(key, group, part.view(torch.uint8))

    def _is(self, key: bytes, group: int, part: Tensor) -> None:
        assert self.source.setdefault((key, group), part).equal(part), "a block has two contents"

    def take_asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        return (), ()

    def begin(self, prompt_id: str, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.wanted[key] = (1 << self.num_groups) - 1

    def end(self, prompt_id: str, error: str = "", token_id: int | None = None) -> None:
        return None

    def take_first_tokens(self) -> Sequence[tuple[str, int]]:
        owners = [owner for owner in self._drawing if self.draw.random() < 0.8]
        self.drawn += len(owners)
        return [(owner, self._drawing.pop(owner)) for owner in owners]

    # --- StoreIndex -------------------------------------------------------------------------------

    def groups_of(self, key: bytes) -> int:
        return ~self.wanted.get(key, 0) & (1 << self.num_groups) - 1

    def near(self, key: bytes) -> int:
        return sum(1 << group for group in range(self.num_groups) if (key, group) in self._near)

    def note(self, placed: Placed) -> None:
        if taken := self.wanted.get(placed.key, 0) & placed.groups:
            self.wanted[placed.key] ^= taken
            self.noted[placed.key] = self.noted.get(placed.key, 0) | taken

    def drop(self, key: bytes) -> None:
        if noted := self.noted.pop(key, 0):
            self.wanted[key] |= noted

    def touch(self, keys: Sequence[bytes]) -> None:
        return None

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        for key, bits in wanted:
            for group in range(self.num_groups):
                if bits >> group & 1:
                    self._near[key, group].add(owner)
        self._ended.append(owner)
        os.eventfd_write(self._descriptor, 1)

    def pin(self, keys: Sequence[bytes], owner: str, until: float) -> int:
        return 0

    def release(self, owner: str) -> None:
        self._coming.pop(owner, None)
        self._drawing.pop(owner, None)
        for part, owners in [*self._near.items()]:
            owners.discard(owner)
            if not owners:
                del self._near[part]

    # --- Mover ------------------------------------------------------------------------------------

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self._groups = groups

    def save(self, saves: Sequence[Placed]) -> None:
        for placed in saves:
            self.record(placed)
            noted = self.noted.get(placed.key, 0)
            self.noted[placed.key] = noted & ~placed.groups
            self.sent += (noted & placed.groups).bit_count()

    def record(self, placed: Placed) -> None:
        for group, place in enumerate(placed.places):
            if place is not None:
                pieces = [piece[place] for piece in self._groups[group]]
                self._is(placed.key, group, torch.cat(pieces))

    def load(self, loads: Sequence[Placed]) -> None:
        for placed in loads:
            for group, place in enumerate(placed.places):
                if place is not None:
                    assert (placed.key, group) in self._near, "it is not near"
                    first = 0
                    for piece in self._groups[group]:
                        rest = self.source[placed.key, group][first:]
                        piece[place] = rest[: len(piece[place])]
                        first += len(piece[place])
                    self.usage.loaded_bytes += first

    def poll(self) -> Sequence[str]:
        for owner, parts in [*self._coming.items()]:
            for part in parts[: self.draw.randrange(4)]:
                self._near.setdefault(part, set()).add(owner)
                parts.remove(part)
            if not parts or self.draw.random() < 0.2:
                del self._coming[owner]
                self._ended.append(owner)
        if not self._coming:
            with suppress(OSError):  # it is not readable, or closed
                os.eventfd_read(self._descriptor)
        ended, self._ended = self._ended, []
        return ended

    def fileno(self) -> int | None:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)
