"""The cache of keys, values and states: blocks and slots by group, content keys, and tensors."""

from inferno.core.kvcache.blocks import BlockPool, WindowBlocks
from inferno.core.kvcache.groups import CacheGroups, Match
from inferno.core.kvcache.keys import extend_keys
from inferno.core.kvcache.states import Snapshots
from inferno.core.kvcache.tensors import KVCache

__all__ = [
    "BlockPool",
    "CacheGroups",
    "KVCache",
    "Match",
    "Snapshots",
    "WindowBlocks",
    "extend_keys",
]
