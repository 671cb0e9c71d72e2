"""Options of ranks and engines: how many processes share a model, and on which machines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import rich_click as click

from inferno.cli.launched import LAUNCHERS, environ, launched
from inferno.errors import OptionError

_engine = partial(click.option, panel="Engine")
TOKEN = "INFERNO_RANK_TOKEN"
"""The variable with the secret of the machines, instead of a file."""
TOKEN_OPTION = _engine(
    "--rank-token-file",
    metavar="FILE",
    help=f"File with the secret that all machines know; or the secret itself in {TOKEN}. "
    "[default: ~/.cache/inferno/ranks.token, made by the first machine]",
)
RANK_OPTIONS = [
    _engine(
        "--tp",
        "--tensor-parallel-size",
        "--num-shards",
        "tp",
        type=int,
        metavar="RANKS",
        help="Tensor parallelism: processes that share each layer. [default: 1]",
    ),
    _engine(
        "--pp",
        "--pipeline-parallel-size",
        "pp",
        type=int,
        metavar="STAGES",
        help="Pipeline parallelism: stages that a step passes through, each with some of the "
        "layers, in --tp processes. [default: 1]",
    ),
    _engine(
        "--ep",
        "--enable-expert-parallel",
        "ep",
        is_flag=True,
        default=None,
        help="Expert parallelism: of a mixture's experts each of the --tp processes has some, "
        "whole, instead of a part of each; without --tp, each of the --dp engines has some, "
        "instead of all.",
    ),
    _engine(
        "--experts-on-host",
        "--num-experts-offload-per-rank",
        "experts_on_host",
        type=int,
        metavar="COUNT",
        envvar="NUM_EXPERTS_OFFLOAD_PER_RANK",
        help="How many of the routed experts that a process has of each layer stay in the host's "
        "memory, where the host computes them. [default: 0]",
    ),
    _engine(
        "--fetch-experts-from",
        metavar="auto|never|TOKENS",
        help="In steps of this many tokens and more, the device copies the experts that it needs "
        "from the host, and computes them; never: the host does. auto: measured at the start. "
        "[default: auto]",
    ),
    _engine(
        "--dp",
        "--data-parallel-size",
        "dp",
        type=int,
        metavar="ENGINES",
        help="Data parallelism: engines on this machine that share the requests, each with the "
        "whole model (with --ep, some of the experts). [default: 1]",
    ),
    _engine(
        "--nodes",
        "--nnodes",
        "nodes",
        type=int,
        metavar="MACHINES",
        help="Machines that the ranks are on, as many on each. The others run what this one "
        "prints, `inferno rank --join`. [default: 1]",
    ),
    _engine(
        "--executor",
        metavar="NAME",
        help="What starts the other machines' ranks: environment (also torchrun, slurm, mpi) for "
        "a launcher that has done so, or a plugin's. [default: a person]",
    ),
    _engine(
        "--rank-host",
        metavar="HOST|INTERFACE",
        help="This machine's address by which the others reach it. "
        "[default: that of the default route]",
    ),
    _engine("--rank-port", type=int, help="Port that they join at. [default: 29400]"),
    TOKEN_OPTION,
    _engine(
        "--numa",
        metavar="auto|NODE,..",
        envvar="MAP_NUMA_NODE",
        help="NUMA nodes to bind the ranks, or engines, to, one after the other; auto: all, or "
        "those of their GPUs. "
        "[default: not bound]",
    ),
]


def fold_ranks(given: dict[str, Any]) -> None:
    """Replace launchers' names, and what the environment says, by options. Raises OptionError."""
    if given.get("executor") in LAUNCHERS:
        world = launched(environ())
        if world.rank:  # `follows` has it in the commands that can
            raise OptionError(
                f"this command cannot be rank {world.rank} of a launcher", "Use serve or generate."
            )
        given["executor"] = "environment"
        stages = given.get("pp") or 1
        if world.ranks % stages:
            raise OptionError(
                f"the launcher's {world.ranks} ranks cannot be dealt out evenly to {stages} stages",
                f"Start a multiple of {stages} processes, or use another --pp.",
            )
        given.setdefault("tp", world.ranks // stages)
        given.setdefault("nodes", world.machines)
        if (host := world.listens) is not None:
            given.setdefault("rank_host", host)
        given.setdefault("rank_port", world.port)
    if ("executor" in given or given.get("nodes", 1) > 1) and "rank_token_file" not in given:
        if (file := token_file(environ())) is not None:
            given["rank_token_file"] = file


def token_file(variables: Mapping[str, str]) -> str | None:
    """Return a file with the secret of the environment, if it has one: the engine's process, which
    reads it, gets no secrets in its own. It is removed when this process ends."""
    if not (token := variables.get(TOKEN, "")):
        return None
    import atexit
    from tempfile import NamedTemporaryFile

    file = NamedTemporaryFile("w", prefix="inferno_ranks_", suffix=".token")
    atexit.register(file.close)
    file.write(token)
    file.flush()
    return file.name
