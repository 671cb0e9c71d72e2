"""The choice of a store for the cache's blocks."""

from __future__ import annotations

from pathlib import Path

from inferno import host
from inferno.catalog import Catalog
from inferno.catalog.choice import choose
from inferno.contracts import StoreNeed
from inferno.errors import OptionError
from inferno.plan.decided import Decided
from inferno.plan.options import Options
from inferno.plan.store_use import StoreUse


def choose_store(
    catalog: Catalog, options: Options, policy: str
) -> Decided[StoreUse | None] | None:
    """Return the store that the options ask for; None if they ask for none. Raises OptionError,
    UnsupportedError."""
    if options.kv_store is None and options.cpu_mem_fold is None:
        return None
    if policy == "none":
        raise OptionError(
            "--kv-store and --cpu-mem-fold need a prefix cache, and the cache policy is none",
            "Leave out --cache-policy none.",
        )
    folder = None if options.kv_store is None else Path(options.kv_store).expanduser().absolute()
    need = StoreNeed(
        layout="",
        sizes=(),
        folder=folder,
        folder_limit=host.parse_size(options.kv_store_size, "--kv-store-size"),
        host_limit=1 if options.cpu_mem_fold else 0,
    )
    choice = choose(
        catalog.of("inferno_block_stores"),
        "blocks beside the cache's memory",
        lambda offer: offer.item.refuses(need),
    )
    use = StoreUse(
        name=choice.item.name,
        distribution=choice.offer.distribution,
        folder=None if folder is None else str(folder),
        folder_limit=need.folder_limit,
        host_fold=options.cpu_mem_fold or 0.0,
    )
    return Decided(use, (("block store", choice.offer),), choice.refusals)
