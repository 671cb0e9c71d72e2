"""Every endpoint of SGLang's API."""

from __future__ import annotations

from inferno.server.api import Api
from inferno_sglang.control import (
    abort_request,
    continue_generation,
    flush_cache,
    is_paused,
    pause,
    pause_generation,
    release_memory,
    resume,
    resume_memory,
    update_from_disk,
)
from inferno_sglang.distributed import init_group, leave_group, update_from_group
from inferno_sglang.generating import generate
from inferno_sglang.refused import close_communicator, refused
from inferno_sglang.schema import (
    AbortRequest,
    GenerateRequest,
    InitGroupRequest,
    LeaveGroupRequest,
    MemoryRequest,
    PauseRequest,
    SamplingOptions,
    UpdateFromDiskRequest,
    UpdateFromGroupRequest,
)
from inferno_sglang.status import health, model_info, server_info, weight_version, world_size

API = Api(
    handlers=(
        generate,
        health,
        model_info,
        server_info,
        weight_version,
        world_size,
        abort_request,
        flush_cache,
        pause_generation,
        continue_generation,
        pause,
        resume,
        is_paused,
        release_memory,
        resume_memory,
        update_from_disk,
        init_group,
        update_from_group,
        leave_group,
        refused,
        close_communicator,
    ),
    bodies=(
        GenerateRequest,
        SamplingOptions,
        AbortRequest,
        PauseRequest,
        MemoryRequest,
        UpdateFromDiskRequest,
        InitGroupRequest,
        UpdateFromGroupRequest,
        LeaveGroupRequest,
    ),
    any_content_type=True,
)
