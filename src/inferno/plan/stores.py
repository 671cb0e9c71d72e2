"""The choice of a store for the cache's blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import evolve

from inferno import host
from inferno.catalog import Catalog, Choice
from inferno.catalog.choice import choose
from inferno.contracts import BlockStore, Link, StoreNeed
from inferno.errors import OptionError, OutOfMemoryError, UnsupportedError
from inferno.plan.addresses import address_of, hosts_of, urls_of
from inferno.plan.cache_groups import CacheGroupPlan
from inferno.plan.decided import Decided
from inferno.plan.options import Options
from inferno.plan.packed_folder import default_folder
from inferno.plan.store_use import StoreUse

HOST_PERCENT = 90
"""Of a machine's memory, what an engine's and its host tier may take together."""


def choose_store(
    catalog: Catalog, options: Options, policy: str, environ: Mapping[str, str]
) -> Decided[StoreUse | None] | None:
    """Return the stores that the options ask for: tiers, a link, or both; None if they ask for
    none. Raises OptionError, UnsupportedError."""
    link, keeps = _link(options), options.kv_store is not None or options.cpu_mem_fold is not None
    if link is None and not keeps:
        return None
    if policy == "none":
        raise OptionError(
            f"{_flags(link, keeps)} need a prefix cache, and the cache policy is none",
            "Leave out --cache-policy none.",
        )
    folder = None if options.kv_store is None else Path(options.kv_store).expanduser().absolute()
    limit = host.parse_size(options.kv_store_size, "--kv-store-size")
    tiers, linked = None, None
    if keeps:
        need = StoreNeed(
            layout="",
            sizes=(),
            folder=folder,
            folder_limit=limit,
            host_limit=1 if options.cpu_mem_fold else 0,
        )
        tiers = _choose(catalog, "blocks beside the cache's memory", need)
    if link is not None:
        need = StoreNeed(layout="", sizes=(), link=evolve(link, url=urls_of(link.url)[0]))
        linked = _choose(catalog, "a link to other instances", need)
    use = StoreUse(
        name=tiers.item.name if tiers is not None else None,
        linked_by=linked.item.name if linked is not None else None,
        folder=None if folder is None else str(folder),
        folder_limit=limit // options.processes_here,
        engines=options.dp,
        ranks=options.ranks,
        host_fold=options.cpu_mem_fold or 0.0,
        link=link,
        hashes=None
        if link is None or folder is not None
        else str(default_folder(environ).with_name("hashes")),
    )
    if link is not None and linked is not None:
        for url in use.addresses():  # of other engines, and of other ranks
            if why := _refusal(linked.item, evolve(need, link=evolve(link, url=url))):
                flag = "--decode-with" if link.role == "decode" else "--prefill-for"
                raise UnsupportedError(f"{flag} {url}: {why}", "Use another address.")
    chosen = [
        (kind, choice)
        for kind, choice in (("block store", tiers), ("link", linked))
        if choice is not None
    ]
    # A store that one choice took was not passed over, though the other refused it.
    names = {choice.item.name for _, choice in chosen}
    refusals = [each for _, choice in chosen for each in choice.refusals if each.name not in names]
    return Decided(use, tuple((kind, each.offer) for kind, each in chosen), tuple(refusals))


def with_room(
    store: Decided[StoreUse | None] | None,
    groups: Sequence[CacheGroupPlan],
    options: Options,
    taken: int,
    total: int,
) -> Decided[StoreUse | None] | None:
    """Return the choice with a host tier that fits into a machine's `total` bytes, of which each
    process takes `taken` for all else. `groups` are those of one process. Raises OutOfMemoryError
    if nothing is left for a tier."""
    if store is None or store.value is None or not store.value.host_fold:
        return store
    count, wanted = options.processes_here, store.value.host_bytes(groups)
    most = total * HOST_PERCENT // 100 // count - taken
    if wanted <= most:
        return store
    of = f"of the {host.format_bytes(total)} of this machine, all else takes "
    of += host.format_bytes(taken * count)
    if most <= 0:
        raise OutOfMemoryError(
            f"--cpu-mem-fold {options.cpu_mem_fold:g}: {of}, which leaves nothing for it",
            "Lower --memory, or leave --cpu-mem-fold out.",
        )
    note = f"host tier lowered from {host.format_bytes(wanted * count)} to "
    note += f"{host.format_bytes(most * count)}: {of}"
    return evolve(store, value=evolve(store.value, host_most=most), notes=(*store.notes, note))


def _choose(catalog: Catalog, what: str, need: StoreNeed) -> Choice[BlockStore]:
    offers = catalog.of("inferno_block_stores")
    return choose(offers, what, lambda offer: _refusal(offer.item, need))


def _refusal(store: BlockStore, need: StoreNeed) -> str | None:
    if store.links and need.link is None:
        return "it links instances, and keeps no blocks"
    if not store.links and need.link is not None:
        return "it keeps blocks, and links no instances"
    return store.refuses(need)


def _link(options: Options) -> Link | None:
    """Return the end of a link that the options ask for, or None."""
    url = options.prefill_for or options.decode_with
    if url is None:
        if options.pd_token_file is not None:
            raise OptionError(
                "pd_token_file is set without a link",
                "Say what it is for: --prefill-for URL or --decode-with URL.",
            )
        return None
    if options.prefill_for and options.decode_with:
        raise OptionError(
            "prefill_for and decode_with exclude each other",
            "An instance either computes prompts for others or has others compute its own.",
        )
    _check_urls(urls_of(url), options)
    file = options.pd_token_file
    return Link(
        role="prefill" if options.prefill_for else "decode",
        url=url,
        token_file=None if file is None else Path(file).expanduser().absolute(),
        min_tokens=options.pd_min_tokens,
        min_uncached=options.pd_min_uncached,
        timeout=options.pd_timeout,
        buffer=host.parse_size(options.pd_buffer, "--pd-buffer") // options.processes_here,
    )


def _check_urls(urls: list[str], options: Options) -> None:
    """Raise OptionError for several instances that cannot all be used."""
    count = len(urls)
    if options.prefill_for and count > 1:
        raise OptionError(
            f"{options.prefill_for} names {count} instances: --prefill-for takes one, and the "
            "other engines listen beside it",
            "Name the first engine's.",
        )
    for url in urls:
        _check_hosts(url, options)
    if count > options.dp and (twice := next((u for u in urls if urls.count(u) > 1), None)):
        raise OptionError(f"--decode-with names {twice} twice", "Name each instance once.")
    ranks, each = options.ranks, dict.fromkeys(urls)
    taken = [address_of(url, 0, ranks, rank) for url in each for rank in range(ranks)]
    if twice := next((url for url in taken if taken.count(url) > 1), None):
        raise OptionError(
            f"--decode-with: {twice} would be an address of two instances: the {ranks} ranks of "
            "each listen beside each other",
            f"Leave {ranks} ports to each instance.",
        )


def _check_hosts(url: str, options: Options) -> None:
    """Raise OptionError or UnsupportedError if an instance's ranks cannot be at the hosts that its
    URL names."""
    hosts, nodes = hosts_of(url), options.nodes
    if nodes > 1 and not hosts:
        raise UnsupportedError(
            f"--nodes {nodes}: ranks of several machines are not linked through {url}",
            "Name each machine's host: tcp://HOST+HOST:PORT.",
        )
    if options.prefill_for and nodes > 1 and hosts != ["*"] and len(hosts) < nodes:
        raise OptionError(
            f"--prefill-for {url} names {len(hosts)} of {nodes} machines, and each has ranks that "
            "listen",
            "Name each machine's host, or every address of each: tcp://*:PORT.",
        )
    if len(hosts) > 1 and options.ranks == 1:
        raise OptionError(
            f"{url} names several hosts of one instance, which has one rank",
            "Separate instances by commas, or start ranks: --tp N.",
        )


def _flags(link: Link | None, keeps: bool) -> str:
    flags = ["--kv-store", "--cpu-mem-fold"] if keeps else []
    flags += ["--prefill-for", "--decode-with"] if link is not None else []
    return f"{', '.join(flags[:-1])} and {flags[-1]}"
