"""Ways of sending weights that are refused: vLLM's through NCCL, and pickled tensors."""

from __future__ import annotations

from typing import Any

from litestar import Request, post, route

from inferno.errors import RequestError
from inferno_sglang import REFUSED

_WHY = {
    "/update_weights_from_tensor": "tensors are sent pickled, and a pickle runs what it says",
    "/get_weights_by_name": "weights are packed for the machine, not kept as they were stored",
    "/update_weight_version": "a version belongs to weights, not to a name",
    "/collective_rpc": "there are no methods of workers to call",
}
_ELSE = "vLLM's own use of NCCL is not spoken"


@route(list(REFUSED), http_method=["GET", "POST"], status_code=200)
async def refused(request: Request[Any, Any, Any]) -> None:
    """Say which way of sending weights there is."""
    path = request.url.path.rstrip("/")
    raise RequestError(
        f"{path} is not supported: {_WHY.get(path, _ELSE)}",
        "Write a safetensors file that the server can read, and POST its path as model_path to "
        "/update_weights_from_disk; or send tensors through a process group of torch.distributed "
        "(/init_weights_update_group).",
        code="unsupported_weight_transfer",
    )


@post("/close_communicator", status_code=200)
async def close_communicator() -> dict[str, str]:
    """Do nothing: none is open."""
    return {"message": "There is no communicator."}
