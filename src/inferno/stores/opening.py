"""A plan's store of blocks, and the layout that its blocks have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import metadata
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from inferno.contracts import PrefixCache, Sessions
from inferno.errors import OptionError
from inferno.plan import Opened, Plan
from inferno.stores.linked import Decoding, Prefilling
from inferno.stores.presence import NO_PRESENCE, NoPresence, Presence
from inferno.stores.sessions import KeptSessions
from inferno.stores.storing import NO_STORE, NoStore, Storing
from inferno.weights.packed.digest import computed, state

if TYPE_CHECKING:
    from inferno.core.kvcache import CacheGroups
    from inferno.device.places import Places

KEYS = "blake2b-128 of parent and int32 tokens"
"""How content keys are made (`keys`)."""
MADE_BY = ("architecture", "attention", "format", "in-situ scheme", "kernels", "proposer", "scheme")
"""Kinds of choices on which the bytes of blocks depend."""


def open_prefix(opened: Opened, plan: Plan) -> tuple[PrefixCache | None, Sessions | None]:
    """Return the plan's prefix cache, and the sessions that it is kept for."""
    prefix, keeper = opened.parts.cache_policy.build(plan.num_blocks), opened.parts.session_keeper
    if prefix is None or keeper is None or plan.sessions is None:
        return prefix, None
    sessions = keeper.build(plan.sessions.need(plan.block_size, plan.num_blocks), prefix)
    return sessions.cache, sessions


def open_store(
    opened: Opened,
    plan: Plan,
    groups: CacheGroups,
    places: Sequence[Places],
    sessions: Sessions | None = None,
) -> NoStore:
    """Return the plan's store, with its mover at these places, and with the sessions whose blocks
    it keeps. Raises OptionError if its folder cannot be used."""
    store = _open_store(opened, plan, groups, places)
    if sessions is not None:
        store = NoStore() if store is NO_STORE else store
        store.sessions = KeptSessions(sessions, groups, store)
    return store


def _open_store(
    opened: Opened, plan: Plan, groups: CacheGroups, places: Sequence[Places]
) -> NoStore:
    store = opened.parts.block_store
    if store is None or plan.store is None:
        return NO_STORE
    need = plan.store.need(plan.groups)
    link, hashes = need.link, plan.store.hashes
    layout = layout_of(opened, plan, need.folder if hashes is None else Path(hashes))
    index, mover = store.build(evolve(need, layout=layout))
    mover.register([each.pieces for each in places])
    if link is None:
        return Storing(groups, index, mover, need.sizes)
    if link.role == "decode":
        return Decoding(groups, index, mover, need.sizes, terms=link)
    loaded = plan.adapters.loaded if plan.adapters is not None else ()
    refs = {use.adapter.digest: use.adapter for use in loaded}
    return Prefilling(groups, index, mover, adapters=refs)


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


def layout_of(opened: Opened, plan: Plan, folder: Path | None) -> str:
    """Return all that the bytes of a block depend on, as a JSON object. Hashes of the model's files
    are remembered in `folder`. Raises OptionError if they cannot be read."""
    layout: dict[str, Any] = {
        "keys": KEYS,
        "inferno": metadata.version("inferno"),
        "dtype": plan.dtype,
        "block_size": plan.block_size,
        "groups": [
            {
                "kind": group.kind,
                "layers": list(group.layers),
                "window": group.window,
                "bytes": group.unit_bytes,
            }
            for group in plan.groups
        ],
        "cache": [
            [list(layers), {name: [*tensor.shape, tensor.dtype] for name, tensor in cache.items()}]
            for layers, cache in [
                *((use.layers, use.cache) for use in plan.attention),
                *((use.layers, use.cache) for use in plan.states),
            ]
        ],
        "made by": sorted(
            [c.kind, c.name, c.distribution, c.version] for c in plan.chosen if c.kind in MADE_BY
        ),
        "kernels": sorted([use.op, use.layout, use.name, use.level] for use in plan.kernels),
        "isq": None
        if plan.isq is None
        else [dict(plan.isq.modules), plan.isq.importance_sha256, plan.isq.requantized],
        "config": dict(opened.checkpoint.config),
        "overrides": [[use.pattern, use.ref] for use in plan.overrides],
        "device": plan.device.kind,
    }
    if opened.updated:
        layout["updated"] = opened.updated
    if folder is not None:
        layout["files"] = _hashes(opened, folder)
    return json.dumps(layout, sort_keys=True, default=str)


def _hashes(opened: Opened, folder: Path) -> list[str]:
    files = tuple(getattr(opened.checkpoint, "files", ()))
    if not files:
        raise OptionError(
            f"{opened.plan.ref} is not made of files, by which its blocks are told from others'",
            "Leave out --kv-store, --prefill-for, --decode-with.",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        hashes = computed(files, folder, {file: state(file) for file in files}, repeat(None))
    except OSError as error:
        raise OptionError(
            f"the folder {folder}, given or for hashes of the model's files: "
            f"{error.strerror or error}",
            "Name one that can be written: --kv-store DIR, or --packed-cache DIR.",
        ) from error
    return hashes or []
