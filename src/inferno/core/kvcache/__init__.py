"""The cache of keys, values and states: blocks and their places by group, content keys, tensors."""

from inferno.core.kvcache.blocks import BlockPool
from inferno.core.kvcache.full import FullGroup
from inferno.core.kvcache.group import CacheGroup, IsCached
from inferno.core.kvcache.groups import CacheGroups, Match
from inferno.core.kvcache.sharing import fork_of, is_being_computed, needs_prompt
from inferno.core.kvcache.state import Snapshots, StateGroup
from inferno.core.kvcache.tensors import KVCache
from inferno.core.kvcache.window import WindowGroup
from inferno.stores.keys import extend_keys

__all__ = [
    "BlockPool",
    "CacheGroup",
    "CacheGroups",
    "FullGroup",
    "IsCached",
    "KVCache",
    "Match",
    "Snapshots",
    "StateGroup",
    "WindowGroup",
    "extend_keys",
    "fork_of",
    "is_being_computed",
    "needs_prompt",
]
