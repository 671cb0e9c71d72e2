"""Ranks that a launcher has started: torchrun, Slurm, MPI. It says by the environment which process
is which; `inferno serve` is the engine in the first, and a rank in each of the others."""

from __future__ import annotations

from collections.abc import Sequence

from inferno.contracts import MachineStart, RankProcess


def machines(what: MachineStart) -> Sequence[RankProcess]:
    """Start nothing: the processes are there, and join by themselves."""
    return ()
