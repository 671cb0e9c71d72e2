"""Executors: who starts the processes of an engine's ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.device import Device


@frozen(kw_only=True)
class RankStart:
    """A process to start: one rank of an engine, but not its first, which is the engine itself."""

    rank: int
    """From 1."""
    ranks: int
    """How many there are, the first one included."""
    folder: str
    """Where it finds its plan and meets the others: private to this user and machine."""
    command: Sequence[str]
    """The program and its arguments."""


@frozen(kw_only=True)
class MachineStart:
    """The other machines' parts of an engine, to be started: on each, a process that joins the
    first machine."""

    machines: int
    """How many to start: without the first, where the engine is."""
    ranks: int
    """Of each machine."""
    threads: int
    """Of each rank."""
    gpus: int = 0
    """Of each machine: one for each of its ranks, or none."""
    address: str
    """Where the first machine is joined: HOST:PORT."""
    command: Sequence[str]
    """The program and its arguments, `inferno rank --join HOST:PORT`. It ends when the engine
    has."""
    token: str = field(repr=False)
    """The secret that guards the join: the command's `INFERNO_RANK_TOKEN`, and never one of its
    arguments, which others on its machine can read."""


class RankProcess(Protocol):
    """A rank that was started, or another machine's part of an engine."""

    def wait(self) -> str:
        """Wait until it has ended, and return how, as a sentence without a subject, with the name
        of a signal that ended it: "ended with code 1", "was killed by SIGKILL". A thread calls it
        once."""
        ...

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, so that it will not go on by itself."""
        ...

    def kill(self) -> None:
        """End it, if it has not ended."""
        ...


@frozen(kw_only=True)
class Executor:
    """A way to start an engine's ranks: those of one machine (`start`), or other machines
    (`machines`). What ranks compute goes through `torch.distributed`; an executor only starts
    processes, and says when they end."""

    name: str
    start: Callable[[RankStart], RankProcess] | None = field(default=None, converter=lazy.optional)
    """start(what) -> the process, which must not outlive the one that calls. The thread that calls
    lives as long as the engine. Raises OSError. None: it starts no ranks on this machine."""
    machines: Callable[[MachineStart], Sequence[RankProcess]] | None = field(
        default=None, converter=lazy.optional
    )
    """machines(what) -> the processes of the other machines, none of which outlives the one that
    calls; none at all, if something else has started them. The thread that calls lives as long as
    the engine. Raises OSError. None: it starts no other machines. A user names the executor that
    does, by `--executor`."""
    refuses: Callable[[int, Device], str | None] = field(
        default=lambda ranks, device: None, converter=lazy.function
    )
    """refuses(ranks, device) -> a sentence that says why it cannot start that many, or None.
    Imports no torch."""
    inherits: bool = False
    """Whether the processes are children of the one that calls, with its environment and as
    confined as that (`Sandbox`)."""
    priority: int = 0
    api_version: int = 1
