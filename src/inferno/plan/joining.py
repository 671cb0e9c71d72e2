"""Decides how ranks of other machines join an engine."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from inferno.catalog import Catalog
from inferno.catalog.offers import Offer
from inferno.contracts import Device, Executor
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.options import Options
from inferno.plan.packed_folder import default_folder
from inferno.plan.rank_use import JoinUse

LOOPBACK = "127.0.0.1"
ENVIRONMENT = "environment"
"""The executor whose processes a launcher has started, one for each rank."""
_ELSEWHERE = ("192.0.2.1", 9), ("2001:db8::1", 9)
"""Addresses that are nobody's (RFC 5737, RFC 3849). Nothing is sent to them."""


def choose_join(
    catalog: Catalog, options: Options, device: Device, environ: Mapping[str, str]
) -> tuple[JoinUse | None, Offer[Executor] | None]:
    """Return how other machines join, and what starts their processes, if anything does. None: all
    ranks are on this machine. Raises OptionError, UnsupportedError."""
    offer: Offer[Executor] | None = None
    if options.executor is not None:
        offer = _named(catalog, options.executor)
        if (reason := offer.item.refuses(options.ranks, device)) is not None:
            raise UnsupportedError(
                f"--executor {options.executor}: {reason}", "Or leave --executor out."
            )
    elif options.nodes == 1:
        return None, None
    alone = offer is not None and offer.item.name == ENVIRONMENT
    use = JoinUse(
        nodes=options.nodes,
        each=1 if alone else options.ranks_here,
        host=options.rank_host or own_address(),
        port=options.rank_port,
        token_file=str(token_file(options.rank_token_file, environ)),
        executor="" if offer is None else offer.item.name,
        distribution="" if offer is None else offer.distribution,
    )
    return use, offer


def token_file(asked: str | None, environ: Mapping[str, str]) -> Path:
    """Return the file with the secret of the machines: `asked`, or this user's."""
    if asked is not None:
        return Path(asked).expanduser().absolute()
    return default_folder(environ).parent / "ranks.token"


def own_address() -> str:
    """Return the address by which others reach this machine: that of its default route."""
    for family, to in zip((socket.AF_INET, socket.AF_INET6), _ELSEWHERE, strict=True):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(to)  # UDP: this only asks the system for the route
            return str(probe.getsockname()[0])
    return LOOPBACK


def _named(catalog: Catalog, name: str) -> Offer[Executor]:
    offers = [o for o in catalog.of("inferno_executors") if o.item.machines is not None]
    for offer in offers:
        if offer.item.name == name:
            return offer
    known = ", ".join(sorted(offer.item.name for offer in offers)) or "none"
    raise OptionError(
        f"executor {name!r} starts no other machines",
        f"Known: {known}. Without --executor, `inferno rank --join` is run by hand.",
    )
