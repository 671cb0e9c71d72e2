"""A plan's store of blocks, opened for an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attrs import evolve

from inferno.contracts import PrefixCache, Sessions
from inferno.plan import Opened, Plan
from inferno.stores.layouts import file_hashes, layout_of
from inferno.stores.linked import Decoding, Prefilling
from inferno.stores.no_store import NO_STORE, NoStore
from inferno.stores.presence import NO_PRESENCE, NoPresence, Presence
from inferno.stores.sessions import KeptSessions
from inferno.stores.stacked import Stacked, StoreHalves
from inferno.stores.storing import Storing

if TYPE_CHECKING:
    from inferno.core.kvcache import CacheGroups
    from inferno.device.places import Places


def open_prefix(opened: Opened, plan: Plan) -> tuple[PrefixCache | None, Sessions | None]:
    """Return the plan's prefix cache, and the sessions that it is kept for."""
    prefix, keeper = opened.parts.cache_policy.build(plan.num_blocks), opened.parts.session_keeper
    if prefix is None or keeper is None or plan.sessions is None:
        return prefix, None
    sessions = keeper.build(plan.sessions.need(plan.block_size, plan.num_blocks), prefix)
    return sessions.cache, sessions


Share = Callable[[Sequence[StoreHalves]], Sequence[StoreHalves]]
"""Wraps stores, of whose blocks other ranks have parts."""


def open_store(
    opened: Opened,
    plan: Plan,
    groups: CacheGroups,
    places: Sequence[Places],
    sessions: Sessions | None = None,
    share: Share = lambda stores: stores,
) -> NoStore:
    """Return the plan's store, with its mover at these places, and with the sessions whose blocks
    it keeps. Raises OptionError if its folder cannot be used."""
    store = _open_store(opened, plan, groups, places, share)
    if sessions is not None:
        store = NoStore() if store is NO_STORE else store
        store.sessions = KeptSessions(sessions, groups, store)
    return store


def _open_store(
    opened: Opened, plan: Plan, groups: CacheGroups, places: Sequence[Places], share: Share
) -> NoStore:
    if plan.store is None:
        return NO_STORE
    here, link = build_stores(opened, plan, places), plan.store.link
    index, mover = as_one(plan, share(here), here)
    sizes = tuple(group.unit_bytes for group in plan.groups)
    if link is None:
        return Storing(groups, index, mover, sizes)
    if link.role == "decode":
        return Decoding(groups, index, mover, sizes, terms=link, vocab_size=plan.vocab_size)
    loaded = plan.adapters.loaded if plan.adapters is not None else ()
    refs = {use.adapter.digest: use.adapter for use in loaded}
    return Prefilling(groups, index, mover, sizes, adapters=refs)


def build_stores(
    opened: Opened, plan: Plan, places: Sequence[Places], hashes: Sequence[str] | None = None
) -> list[StoreHalves]:
    """Return the plan's stores, tiers before a link if there are both, with their movers at these
    places. `hashes` are those of the model's files, where another rank has computed them. Raises
    OptionError."""
    tiers, link, use = opened.parts.block_store, opened.parts.link_store, plan.store
    assert use is not None, "a plan with a store"
    rank = opened.rank if plan.ranks is not None else None
    layout = layout_of(opened, plan, hashes or file_hashes(opened, plan))
    stores = list[StoreHalves]()
    try:
        if tiers is not None:
            stores.append(tiers.build(evolve(use.need(plan.groups, rank), layout=layout)))
        if link is not None:
            stores.append(link.build(evolve(use.need_to_link(plan.groups, rank), layout=layout)))
    except BaseException:
        for _, mover in stores:
            mover.close()
        raise
    for _, mover in stores:
        mover.register([each.pieces for each in places])
    return stores


def as_one(
    plan: Plan, stores: Sequence[StoreHalves], here: Sequence[StoreHalves] = ()
) -> StoreHalves:
    """Return the plan's tiers and link as one store, or the only store that it has. `here` are
    those of this rank alone, if there are others."""
    if len(stores) == 1:
        return stores[0]
    assert plan.store is not None, "a plan with two stores"
    tiers, link = stores
    stacked = Stacked.of(tiers, link, sends=plan.store.is_asked, here=here)
    return stacked, stacked


def open_presence(opened: Opened, plan: Plan, groups: CacheGroups, store: NoStore) -> NoPresence:
    """Return what publishes the plan's events of the cache and of its store. Raises OptionError if
    they cannot be published there."""
    sink = opened.parts.event_sink
    if sink is None or plan.events is None:
        return NO_PRESENCE
    publisher = sink.build(plan.events.need(plan.model_id, plan.block_size, plan.groups))
    presence = Presence(publisher, plan.block_size, groups.parts_of)
    groups.watch(presence)
    store.watch(presence)
    return presence
