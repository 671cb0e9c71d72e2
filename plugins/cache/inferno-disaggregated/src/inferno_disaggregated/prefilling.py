"""The prefilling end: what others ask for is computed, and what they lack of it is sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field
from torch import Tensor

from inferno.contracts import LinkedPrompt, Placed, StoreNeed, StoreUsage
from inferno_disaggregated import messages
from inferno_disaggregated.pieces import Bytes, GroupCopies
from inferno_disaggregated.server import Note, Run, Server, Transfer, Unwanted

RUN_BYTES = 8 << 20
"""What is sent at once, unless one part is larger."""


@define(eq=False)
class Prefilling:
    """Index and mover."""

    need: StoreNeed
    server: Server
    buffer: int
    usage: StoreUsage = field(factory=StoreUsage)
    _wanted: dict[bytes, dict[str, tuple[Transfer, int]]] = field(factory=dict)
    """By key and prompt, the prompts that a block is wanted for, and its index in each."""
    _open: dict[str, Transfer] = field(factory=dict)
    _copies: list[GroupCopies] = field(factory=list)

    @property
    def _all(self) -> int:
        return (1 << len(self.need.sizes)) - 1

    # --- LinkIndex --------------------------------------------------------------------------------

    @property
    def is_asked(self) -> bool:
        return bool(self.server.news)

    def take_asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        prompts, unwanted = list[LinkedPrompt](), list[str]()
        for news in self.server.news.take():
            if isinstance(news, Unwanted):
                unwanted.append(news.transfer.id)
                self._close(news.transfer)
                continue
            self._open[news.id] = news
            prompts.append(news.prompt)
        return prompts, unwanted

    def begin(self, prompt_id: str, keys: Sequence[bytes]) -> None:
        if (transfer := self._open.get(prompt_id)) is None:
            return
        self.usage.linked_prompts += 1
        transfer.keys = list(keys)
        for i, (key, groups) in enumerate(zip(keys, transfer.lacks, strict=False)):
            transfer.lacks[i] = groups & self._all
            if transfer.lacks[i]:
                self._wanted.setdefault(key, {})[transfer.id] = transfer, i

    def end(self, prompt_id: str, error: str = "", token_id: int | None = None) -> None:
        if (transfer := self._open.get(prompt_id)) is not None and transfer.error is None:
            transfer.error = error
            if error:
                self._forget(transfer)
                refused = not transfer.keys
                cause: messages.Cause = "refused" if refused else "failed"
                done = messages.Done(transfer.number, cause, error[:500])
                self.server.post(Note(transfer, done))
                return
            if token_id is not None:
                self.server.post(Note(transfer, messages.First(transfer.number, token_id)))
            self._finish(transfer)

    def take_first_tokens(self) -> Sequence[tuple[str, int]]:
        return ()

    def ask(self, prompt: LinkedPrompt, keys: Sequence[bytes], wanted: Sequence[int]) -> int:
        return 0

    def _finish(self, transfer: Transfer) -> None:
        """Say that all has been sent, if it has."""
        if transfer.error == "" and not transfer.noted:
            self._forget(transfer)
            cause: messages.Cause = "short" if transfer.is_short else ""
            self.server.post(Note(transfer, messages.Done(transfer.number, cause, "")))

    def _forget(self, transfer: Transfer) -> None:
        """Want nothing more for a prompt."""
        transfer.noted.clear()
        for key in transfer.keys:
            if (wanted := self._wanted.get(key)) is not None:
                wanted.pop(transfer.id, None)
                if not wanted:
                    del self._wanted[key]

    def _close(self, transfer: Transfer) -> None:
        """Forget a prompt whose blocks nobody needs."""
        self._open.pop(transfer.id, None)
        self._forget(transfer)
        if (arena := transfer.peer.arena) is not None and not transfer.peer.gone:
            for run in transfer.runs:
                arena.give_back(*run)
        transfer.runs.clear()

    # --- StoreIndex -------------------------------------------------------------------------------

    def groups_of(self, key: bytes) -> int:
        lacking = 0
        for transfer, index in self._wanted.get(key, {}).values():
            lacking |= transfer.lacks[index]
        return self._all & ~lacking

    def near(self, key: bytes) -> int:
        return 0

    def note(self, placed: Placed) -> None:
        for transfer, index in self._wanted.get(placed.key, {}).values():
            if taken := transfer.lacks[index] & placed.groups:
                transfer.lacks[index] ^= taken
                transfer.noted[index] = transfer.noted.get(index, 0) | taken

    def drop(self, key: bytes) -> None:
        for transfer, index in list(self._wanted.get(key, {}).values()):
            transfer.lacks[index] |= transfer.noted.pop(index, 0)
            self._finish(transfer)

    def touch(self, keys: Sequence[bytes]) -> None:
        return None

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        raise AssertionError("nothing is near or far in this end")

    def pin(self, keys: Sequence[bytes], owner: str, until: float) -> int:
        return 0

    def release(self, owner: str) -> None:
        return None

    # --- Mover ------------------------------------------------------------------------------------

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self._copies = [GroupCopies(pieces) for pieces in groups]

    def save(self, saves: Sequence[Placed]) -> None:
        rows = dict[tuple[str, int], list[tuple[int, int]]]()
        touched = dict[str, Transfer]()
        for placed in saves:
            for transfer, index in self._wanted.get(placed.key, {}).values():
                noted = transfer.noted.pop(index, 0)
                if rest := noted & ~placed.groups:
                    transfer.noted[index] = rest
                touched[transfer.id] = transfer
                for group, place in enumerate(placed.places):
                    if noted >> group & 1 and place is not None:
                        rows.setdefault((transfer.id, group), []).append((index, place))
        for (name, group), pairs in rows.items():
            self._send(touched[name], group, pairs)
        for transfer in touched.values():
            self._finish(transfer)

    def _send(self, transfer: Transfer, group: int, found: list[tuple[int, int]]) -> None:
        size = self.need.sizes[group]
        count, first = max(1, RUN_BYTES // max(1, size)), 0
        while first < len(found):
            some = found[first : first + count]
            taken = self._room(transfer, len(some) * size)
            if taken is None:
                count = len(some) // 2
                if not count:
                    transfer.is_short = True
                    return
                continue
            first += len(some)
            offset, room = taken
            parts = room.reshape(len(some), size)
            self._copies[group].out([place for _, place in some], parts)
            self.usage.saved_bytes += parts.nbytes
            self.usage.linked_bytes += parts.nbytes
            self.server.post(Run(transfer, group, [index for index, _ in some], parts, offset))

    def _room(self, transfer: Transfer, nbytes: int) -> tuple[int, Bytes] | None:
        """Return bytes to send, and their offset in shared memory or -1. None if there are none."""
        peer = transfer.peer
        if transfer.is_short or peer.gone:
            return None
        if not nbytes:
            return -1, np.empty(0, np.uint8)
        if peer.arena is not None and peer.maps:
            offset = peer.arena.take(nbytes)
            if offset is None:
                return None
            transfer.runs.append((offset, nbytes))
            return offset, peer.arena.view(offset, nbytes)
        if peer.waiting + nbytes > self.buffer:
            return None
        peer.wait(nbytes)
        return -1, np.empty(nbytes, np.uint8)

    def load(self, loads: Sequence[Placed]) -> None:
        assert not loads, "nothing is loaded in this end"

    def poll(self) -> Sequence[str]:
        return ()

    def fileno(self) -> int | None:
        return self.server.news.descriptor

    def close(self) -> None:
        self.server.close()
