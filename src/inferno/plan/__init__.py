"""The plan: one value between "what do you want" and "what runs".

`resolve` reads headers only and imports no torch. `explain` prints the value, `serve`, `chat`,
`generate` and `bench` execute exactly it, and an engine process receives it serialised: there is
one code path.
"""

from inferno.plan.cache_groups import CacheGroupPlan, StateUse, with_num_blocks
from inferno.plan.resolver import resolve
from inferno.plan.stored import modules_of, unused_tensors
from inferno.plan.values import (
    AttentionUse,
    KernelUse,
    MemoryItem,
    Options,
    Plan,
    SchemeUse,
    open_checkpoint,
    open_text,
    plan_from_json,
    plan_to_json,
)

__all__ = [
    "AttentionUse",
    "CacheGroupPlan",
    "KernelUse",
    "MemoryItem",
    "Options",
    "Plan",
    "SchemeUse",
    "StateUse",
    "modules_of",
    "open_checkpoint",
    "open_text",
    "plan_from_json",
    "plan_to_json",
    "resolve",
    "unused_tensors",
    "with_num_blocks",
]
