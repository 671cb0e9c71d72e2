"""What a launcher says of this process by its environment: torchrun, Slurm, MPI."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, MutableMapping
from ipaddress import ip_address

from attrs import frozen

from inferno.errors import OptionError

LAUNCHERS = frozenset({"environment", "torchrun", "slurm", "mpi"})
"""Names of the executor whose processes a launcher has started."""
DEFAULT_PORT = 29400
_NAMES = (  # rank, ranks, ranks on this machine
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
)
"""torchrun's come first: it may itself be started by the others."""
_MOST_RANKS = 1 << 16


@frozen(kw_only=True)
class Launched:
    """One of the processes that a launcher has started."""

    rank: int
    ranks: int
    machines: int
    """That they are on, as many on each."""
    host: str
    """The first one's machine."""
    port: int
    """Where the first one is joined."""

    @property
    def listens(self) -> str | None:
        """The address at which the first one is joined; None: that of the default route, because
        its own name leads to the loopback device there, as on Debian."""
        if self.machines == 1:
            return self.host
        try:
            ip = str(socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            return self.host  # an error that names it follows
        return None if ip_address(ip).is_loopback else self.host


def environ() -> MutableMapping[str, str]:
    """Return this process's environment."""
    return os.environ


def launched(environ: Mapping[str, str]) -> Launched:
    """Return what the environment says. Raises OptionError if it says too little."""
    for names in _NAMES:
        if all(environ.get(name) for name in names[:2]):
            rank, ranks = (_number(environ, name) for name in names[:2])
            here = _number(environ, names[2]) if environ.get(names[2]) else 0
            break
    else:
        raise OptionError(
            "no launcher has started this process: RANK and WORLD_SIZE are not set",
            "Start it by torchrun, srun or mpirun, or leave --executor out.",
        )
    if not 0 <= rank < ranks:
        raise OptionError(f"this is rank {rank} of {ranks}", f"Set {names[0]} and {names[1]}.")
    machines = _number(environ, "SLURM_NNODES") if environ.get("SLURM_NNODES") else 0
    machines = (ranks // here if here and ranks % here == 0 else 0) or machines or 1
    if ranks % machines:
        machines = 1 if machines == 1 else ranks  # uneven: each counts as a machine of its own
    return Launched(
        rank=rank,
        ranks=ranks,
        machines=machines,
        host=_host(environ, alone=machines == 1),
        port=_port(environ),
    )


def _port(environ: Mapping[str, str]) -> int:
    """The launcher's own port may be in use by it: the next one is ours."""
    if not environ.get("MASTER_PORT"):
        return DEFAULT_PORT
    port = _number(environ, "MASTER_PORT")
    return port + 1 if port < (1 << 16) - 1 else port - 1


def _host(environ: Mapping[str, str], *, alone: bool) -> str:
    if address := environ.get("MASTER_ADDR"):
        return address
    if nodes := environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST"):
        return first_node(nodes)
    if alone:
        return "127.0.0.1"
    raise OptionError(
        "MASTER_ADDR is not set: the others do not know where the first rank is",
        "Set it for all: `mpirun -x MASTER_ADDR=HOST`.",
    )


def first_node(nodes: str) -> str:
    """Return the first of Slurm's nodes: of `gpu[03-05,9],login`, gpu03."""
    parts = re.match(r"([^,\[\]]+)(?:\[(\w+))?([^,\[\]]*)", nodes.strip())
    if parts is None:
        raise OptionError(f"{nodes!r} is not a list of nodes", "Set MASTER_ADDR.")
    first, number = parts[1], parts[2] or ""
    rest = nodes.partition("]")[2] if number else ""
    return first + number + re.split(r"[,\[]", rest)[0]


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].partition("(")[0]  # Slurm writes 2(x3) for three nodes of two
    if not text.isdecimal() or int(text) >= _MOST_RANKS:
        raise OptionError(f"{name} is {environ[name]!r}", "It must be a number.")
    return int(text)
