"""The choice of a store for the cache's blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import evolve

from inferno import host
from inferno.catalog import Catalog
from inferno.catalog.choice import choose
from inferno.contracts import BlockStore, Link, StoreNeed
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.addresses import urls_of
from inferno.plan.decided import Decided
from inferno.plan.options import Options
from inferno.plan.packed_folder import default_folder
from inferno.plan.store_use import StoreUse


def choose_store(
    catalog: Catalog, options: Options, policy: str, environ: Mapping[str, str]
) -> Decided[StoreUse | None] | None:
    """Return the store that the options ask for; None if they ask for none. Raises OptionError,
    UnsupportedError."""
    link = _link(options)
    if options.kv_store is None and options.cpu_mem_fold is None and link is None:
        return None
    if policy == "none":
        raise OptionError(
            f"{_said(link)} need a prefix cache, and the cache policy is none",
            "Leave out --cache-policy none.",
        )
    folder = None if options.kv_store is None else Path(options.kv_store).expanduser().absolute()
    links = [] if link is None else [evolve(link, url=url) for url in urls_of(link.url)]
    need = StoreNeed(
        layout="",
        sizes=(),
        folder=folder,
        folder_limit=host.parse_size(options.kv_store_size, "--kv-store-size"),
        host_limit=1 if options.cpu_mem_fold else 0,
        link=links[0] if links else None,
    )
    choice = choose(
        catalog.of("inferno_block_stores"),
        "blocks beside the cache's memory" if link is None else "a link to other instances",
        lambda offer: _refusal(offer.item, need),
    )
    use = StoreUse(
        name=choice.item.name,
        distribution=choice.offer.distribution,
        folder=None if folder is None else str(folder),
        folder_limit=need.folder_limit // options.processes_here,
        engines=options.dp,
        ranks=options.ranks,
        host_fold=options.cpu_mem_fold or 0.0,
        link=link,
        hashes=None if link is None else str(default_folder(environ).with_name("hashes")),
    )
    for url in use.addresses():  # of other engines, and of other ranks
        if why := _refusal(choice.item, evolve(need, link=evolve(links[0], url=url))):
            flag = "--decode-with" if links[0].role == "decode" else "--prefill-for"
            raise UnsupportedError(f"{flag} {url}: {why}", "Use another address.")
    return Decided(use, (("block store", choice.offer),), choice.refusals)


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
    if options.kv_store is not None or options.cpu_mem_fold is not None:
        raise OptionError(
            "a link to other instances excludes kv_store and cpu_mem_fold",
            "Leave out --kv-store and --cpu-mem-fold, or the link.",
        )
    if (count := len(urls_of(url))) > (options.dp if options.decode_with else 1):
        raise OptionError(
            f"{url} names {count} instances: "
            + (
                f"--decode-with takes one for each engine, and there is {options.dp}"
                if options.decode_with
                else "--prefill-for takes one, and the other engines listen beside it"
            ),
            f"Name one, or start an engine for each: --dp {count}."
            if options.decode_with
            else "Name the first engine's.",
        )
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


def _said(link: Link | None) -> str:
    return "--kv-store and --cpu-mem-fold" if link is None else "--prefill-for and --decode-with"
