"""The form of events on the wire: that of vLLM's `KVEventBatch`, which llm-d and Dynamo read.

A batch is `[seconds, [event, ..], data-parallel rank]`. An event is an array that begins with its
name:

    ["BlockStored", [hash, ..], parent or nil, [token, ..], tokens of a block, nil, medium,
     adapter or nil, extra keys or nil, group, kind of the group, window if it has one]
    ["BlockRemoved", [hash, ..], medium, group]
    ["AllBlocksCleared"]

A hash is the last 64 bits of a content key, as vLLM's is of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferno.contracts import (
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    EventGroup,
    EventNeed,
    Tier,
)

MEDIA: Mapping[Tier, str] = {"memory": "GPU", "host": "CPU", "disk": "DISK"}
"""`GPU` is what routers call the memory that a prefix is used in, whatever the device."""
KINDS = {
    "full": "full_attention",
    "window": "sliding_window",
    "chunk": "chunked_local_attention",
    "state": "mamba",
}


def batch_of(at: float, events: Sequence[CacheEvent], need: EventNeed) -> list[Any]:
    """Return a batch of events that happened at a time (`time.time`)."""
    told = [_event(each, need.block_size, need.groups) for each in events]
    return [at, told, need.engine]


def hash_of(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def _event(event: CacheEvent, block_size: int, groups: Sequence[EventGroup]) -> list[Any]:
    if isinstance(event, BlocksStored):
        return _stored(event, block_size, groups[event.group])
    if isinstance(event, BlocksRemoved):
        return ["BlockRemoved", list(map(hash_of, event.keys)), MEDIA[event.tier], event.group]
    return ["AllBlocksCleared"]


def _stored(event: BlocksStored, block_size: int, group: EventGroup) -> list[Any]:
    parent = None if event.parent is None else hash_of(event.parent)
    window = [] if group.window is None else [group.window]
    return [
        *("BlockStored", list(map(hash_of, event.keys)), parent, list(event.token_ids)),
        *(block_size, None, MEDIA[event.tier], event.adapter or None, _extra_keys(event)),
        *(event.group, KINDS[group.kind], *window),
    ]


def _extra_keys(event: BlocksStored) -> list[list[str] | None] | None:
    """What blocks depend on besides tokens: the adapter, their images, and the salt in a prompt's
    first block."""
    adapter = [event.adapter] if event.adapter else []
    if not event.token_ids or not (adapter or event.salt or event.images):
        return None
    images = event.images or ("",) * len(event.keys)
    each = [[*adapter, *filter(None, digests.split(","))] for digests in images]
    if event.salt and event.parent is None:
        each[0].append(event.salt)
    return [extras or None for extras in each]
