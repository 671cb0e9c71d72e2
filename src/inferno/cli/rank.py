"""`inferno rank`: this machine's ranks of an engine that another machine runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rich_click as click
from click import get_current_context

from inferno.cli.launched import LAUNCHERS, environ, launched
from inferno.cli.options import FiniteRange, debug_option, declare, plugin_options
from inferno.cli.rank_options import TOKEN, TOKEN_OPTION

_LAUNCHED_WAIT = 120.0
"""How long a rank that a launcher has started looks for the first one, which may be loading."""


@declare
@click.option(
    "--join",
    "address",
    metavar="HOST:PORT",
    required=True,
    help="Where the first machine is joined: it prints this.",
)
@click.option(
    "--model",
    metavar="REF|PATH",
    help="This machine's copy of the model. [default: as on the first machine]",
)
@click.option(
    "--wait",
    type=FiniteRange(0),
    metavar="SECONDS",
    help="How long to look for the first machine, before it has come and after it has gone; 0: end "
    "with it. [default: for ever]",
)
@click.option(
    "--rank-host",
    metavar="HOST|INTERFACE",
    help="This machine's address by which other ranks reach it. "
    "[default: that of the route to the first machine]",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="CPU threads of each rank. [default: as on the first machine, if it has as many cores]",
)
@click.option("--offline", is_flag=True, help="Use only files already on this machine.")
@TOKEN_OPTION
@plugin_options
@debug_option
def command(
    address: str,
    model: str | None,
    wait: float | None,
    rank_host: str | None,
    threads: int | None,
    rank_token_file: str | None,
    disable: tuple[str, ...],
    only: tuple[str, ...],
    *,
    offline: bool,
) -> None:
    """Compute with the engine that another machine runs by `serve --nodes`. Joins it again when its
    engine starts anew."""
    from inferno.process.ranks.greeting import parse_address

    host, port = parse_address(address)
    follow(
        host,
        port,
        rank_token_file,
        model=model,
        wait=wait,
        own_host=rank_host,
        threads=threads,
        offline=offline,
        disable=disable,
        only=only,
    )


def follow(
    host: str,
    port: int,
    token_file: str | None,
    *,
    disable: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    makes_token: bool = False,
    **asked: Any,
) -> None:
    """Be this machine's ranks of the engine that is joined there. `asked` are the fields of
    `Joining`. With `makes_token`, the file with the secret is written if it is missing."""
    import logging

    from inferno.catalog import load_catalog
    from inferno.host import load_torch_library
    from inferno.plan.joining import token_file as file_of
    from inferno.process.ranks.greeting import checked, make_token, read_token
    from inferno.process.ranks.joining import Joining, join

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("inferno").setLevel(logging.INFO)
    load_torch_library()
    if token_file is None and (secret := environ().pop(TOKEN, "")):
        token = checked(secret.strip().encode(), TOKEN)
    else:
        file = str(file_of(token_file, environ()))
        if makes_token:
            make_token(file)
        token = read_token(file)
    catalog = load_catalog(disable=disable, only=only)
    given = {"host": host, "port": port, "token": token, "environ": dict(environ()), **asked}
    join(Joining(**given), catalog)


def follows(ref: str | None, values: Mapping[str, Any]) -> bool:
    """If a launcher has started this process as a rank but the first, be that rank. Returns whether
    it was: else this process is the engine's, or there is no launcher."""
    if values.get("executor") not in LAUNCHERS or (world := launched(environ())).rank == 0:
        return False
    if (early := get_current_context().obj) is not None:
        early.discard()
    follow(
        world.host,
        values.get("rank_port") or world.port,
        values.get("rank_token_file"),
        model=ref,
        wait=_LAUNCHED_WAIT,
        stays=False,
        rank=world.rank,
        own_host=values.get("rank_host"),
        threads=values.get("threads"),
        offline=bool(values.get("offline")),
        disable=values.get("disable", ()),
        only=values.get("only", ()),
        makes_token=True,
    )
    return True
