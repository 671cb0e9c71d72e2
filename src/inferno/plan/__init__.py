"""The plan: one value that holds every decision about what will run.

`open_model` reads headers only and imports no torch. `explain` prints the plan; `serve`, `chat`,
`generate` and `bench` execute that same plan, and an engine process receives it serialised. There
is one code path.
"""

from inferno.plan.backends import NOT_CAPTURED
from inferno.plan.cache_groups import CacheGroupPlan, StateUse, with_num_blocks
from inferno.plan.opened import Opened, Parts, reopen
from inferno.plan.options import Options
from inferno.plan.plan import (
    AttentionUse,
    CaptureUse,
    Chosen,
    KernelUse,
    MemoryItem,
    Plan,
    SchemeUse,
    plan_from_json,
    plan_to_json,
)
from inferno.plan.resolver import open_model, resolve
from inferno.plan.stored import modules_of, unused_tensors

__all__ = [
    "AttentionUse",
    "CacheGroupPlan",
    "CaptureUse",
    "Chosen",
    "KernelUse",
    "MemoryItem",
    "NOT_CAPTURED",
    "Opened",
    "Options",
    "Parts",
    "Plan",
    "SchemeUse",
    "StateUse",
    "modules_of",
    "open_model",
    "plan_from_json",
    "plan_to_json",
    "reopen",
    "resolve",
    "unused_tensors",
    "with_num_blocks",
]
