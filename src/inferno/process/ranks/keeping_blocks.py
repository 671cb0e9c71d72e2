"""A follower's store of blocks: it does what rank 0 says, and tells which fetches have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import or_

from attrs import define, field

from inferno.contracts import Mover, StoreIndex
from inferno.core.types import Step
from inferno.process.ranks.messages import Fetched, StoreCall

MOST_RUNS = 2048
"""Of an answer. It must fit into the system's buffer of a socket: rank 0 may wait for this rank in
a step before it reads."""


@define(eq=False)
class KeptBlocks:
    """The store of a rank's parts of blocks."""

    index: StoreIndex
    mover: Mover
    _fetches: dict[str, list[StoreCall]] = field(factory=dict, init=False)
    """By owner, those that have not ended."""

    def take(self, call: StoreCall) -> None:
        """Do with this rank's parts what rank 0 does with its own."""
        match call.action:
            case "fetch":
                self._fetches.setdefault(call.owner, []).append(call)
                self.index.fetch([*zip(call.keys, call.groups, strict=True)], call.owner)
            case "release":
                self._fetches.pop(call.owner, None)
                self.index.release(call.owner)
            case "touch":
                self.index.touch(call.keys)
            case "pin":
                self.index.pin(call.keys, call.owner, call.until)
            case "drop":
                for key in call.keys:
                    self.index.drop(key)

    def note(self, step: Step) -> None:
        """Note what a step saves, which is about to run."""
        for placed in step.saves:
            self.index.note(placed)

    def answers(self) -> Iterator[Fetched]:
        """Return what rank 0 is told of fetches that have ended since: parts that are not near."""
        for owner in self.mover.poll():
            for call in self._fetches.pop(owner, ()):
                yield self._answer(call)

    def _answer(self, call: StoreCall) -> Fetched:
        each = zip(call.keys, call.groups, strict=True)
        missing = [groups & ~self.index.near(key) for key, groups in each]
        return Fetched(call.number, runs_of(missing))

    def asked(self) -> tuple[list[str], list[str]]:
        """Return the prompts that another instance has asked this rank for since, and those that it
        no longer wants."""
        return [], []

    @property
    def waits_for(self) -> int | None:
        """The descriptor that tells that a fetch may have ended, if one has not, or that another
        instance has asked for something."""
        return self.mover.fileno() if self._fetches else None

    def close(self) -> None:
        self.mover.close()


def runs_of(missing: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the runs of blocks that lack the same groups (`Fetched.lost`): of very many, that all
    lack all of them, which costs time and nothing else."""
    runs, first = list[tuple[int, int, int]](), 0
    for groups, run in groupby(missing):
        count = len([*run])
        if groups:
            runs.append((first, count, groups))
        first += count
    if len(runs) <= MOST_RUNS:
        return runs
    return [(0, len(missing), reduce(or_, missing))]
