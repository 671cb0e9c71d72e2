"""SGLang's API, as trainers use it: generate, pauses, other weights, memory that is given back."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Endpoints

REFUSED = (
    "/update_weights_from_tensor",
    "/get_weights_by_name",
    "/update_weight_version",
    "/collective_rpc",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/finish_weight_update",
    "/init_communicator",
    "/update_named_param",
    "/batch_update_named_params",
)
"""Ways of sending weights that there are not."""
PATHS = (
    "/generate",
    "/health_generate",
    "/abort_request",
    "/model_info",
    "/get_model_info",
    "/server_info",
    "/get_server_info",
    "/weight_version",
    "/get_weight_version",
    "/flush_cache",
    "/reset_prefix_cache",
    "/pause_generation",
    "/continue_generation",
    "/pause",
    "/resume",
    "/is_paused",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/update_weights_from_disk",
    "/init_weights_update_group",
    "/update_weights_from_distributed",
    "/destroy_weights_update_group",
    "/get_world_size",
    "/close_communicator",
    *REFUSED,
)


@hookimpl
def inferno_endpoints() -> list[Endpoints]:
    return [Endpoints(name="sglang", paths=PATHS, api="inferno_sglang.api:API")]
