"""The plan: one value that holds every decision about what will run.

`open_model` reads headers only and imports no torch. `explain` prints the plan; `serve`, `chat`,
`generate` and `bench` execute that same plan, and an engine process receives it serialised. There
is one code path.
"""

from inferno.plan.adapter_use import AdapterPlaces, AdapterRoom, AdapterTarget, AdapterUse
from inferno.plan.adapters import MERGE_ADAPTER, find_adapter, names_in_model
from inferno.plan.audio_use import AudioUse
from inferno.plan.backends import NOT_CAPTURED, device_sizes
from inferno.plan.cache_groups import CacheGroupPlan, StateUse, with_num_blocks
from inferno.plan.capture_use import CUDA_GRAPHS, CaptureUse
from inferno.plan.composite import arrangement, quant_config_of
from inferno.plan.device_plan import plan_of_rank
from inferno.plan.devices import Machine, find_device
from inferno.plan.engine_use import EnginesUse
from inferno.plan.engines import plan_of_engine
from inferno.plan.host_use import HostExpertsUse
from inferno.plan.image_use import ImageUse
from inferno.plan.isq import quantizable, sha256_of
from inferno.plan.kernel_use import KernelUse
from inferno.plan.machines import MachineBytes, RankBytes, machines_of
from inferno.plan.measured import trial_lengths, trial_plan, with_measured
from inferno.plan.measured_use import Measured
from inferno.plan.nvml import Gpu
from inferno.plan.opened import Opened, Parts, read_text, reopen
from inferno.plan.options import Options
from inferno.plan.pipeline import plan_of_stage, stage_starts
from inferno.plan.plan import (
    TORCH,
    AttentionUse,
    BackendUse,
    Chosen,
    GrammarUse,
    InSitu,
    InSituUse,
    MemoryItem,
    OverrideUse,
    Plan,
    SchemeUse,
    plan_from_json,
    plan_to_json,
)
from inferno.plan.resolver import open_model, resolve
from inferno.plan.sandbox_use import SandboxUse
from inferno.plan.stored import modules_of, mtp_tensors, unused_tensors

__all__ = [
    "AdapterPlaces",
    "AdapterRoom",
    "AdapterTarget",
    "AdapterUse",
    "CUDA_GRAPHS",
    "AttentionUse",
    "BackendUse",
    "CacheGroupPlan",
    "CaptureUse",
    "Chosen",
    "EnginesUse",
    "Gpu",
    "GrammarUse",
    "HostExpertsUse",
    "AudioUse",
    "ImageUse",
    "InSitu",
    "InSituUse",
    "KernelUse",
    "Machine",
    "MachineBytes",
    "Measured",
    "MERGE_ADAPTER",
    "MemoryItem",
    "NOT_CAPTURED",
    "Opened",
    "Options",
    "OverrideUse",
    "Parts",
    "Plan",
    "RankBytes",
    "SandboxUse",
    "SchemeUse",
    "StateUse",
    "TORCH",
    "arrangement",
    "device_sizes",
    "find_adapter",
    "names_in_model",
    "find_device",
    "machines_of",
    "modules_of",
    "mtp_tensors",
    "open_model",
    "plan_from_json",
    "plan_of_engine",
    "plan_of_rank",
    "plan_of_stage",
    "plan_to_json",
    "quant_config_of",
    "quantizable",
    "read_text",
    "reopen",
    "resolve",
    "sha256_of",
    "trial_lengths",
    "trial_plan",
    "stage_starts",
    "unused_tensors",
    "with_measured",
    "with_num_blocks",
]
