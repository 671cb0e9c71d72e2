"""Weights that a trainer sends through a process group of `torch.distributed`."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.contracts import COMPUTE_DTYPES
from inferno.errors import InfernoError, RequestError
from inferno.server.api import Models, Parsed, admin_only, post_body
from inferno_sglang.answers import RESPONSES, failed, succeeded
from inferno_sglang.groups import groups_of
from inferno_sglang.schema import InitGroupRequest, LeaveGroupRequest, UpdateFromGroupRequest

_MOST_RANKS = 4096


@post_body(InitGroupRequest, guards=[admin_only], responses=RESPONSES)
async def init_group(
    data: JSONBody[Parsed[InitGroupRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[dict[str, Any]]:
    """Join a trainer's process group, and answer once all of its ranks are there."""
    body = data.body
    if not 0 < body.rank_offset < body.world_size <= _MOST_RANKS:
        raise RequestError(
            f"rank_offset is {body.rank_offset} of world_size {body.world_size}",
            f"This server is one rank after the trainer's 0, of at most {_MOST_RANKS}.",
            param="rank_offset",
        )
    if not 0 < body.master_port < 65536:
        raise RequestError(
            f"master_port is {body.master_port}", "Give the trainer's port.", param="master_port"
        )
    place = {
        "address": body.master_address,
        "port": body.master_port,
        "rank": body.rank_offset,
        "world_size": body.world_size,
        "backend": body.backend or "nccl",
        "device": models.named(None).llm.plan.device.torch_name,
    }
    try:
        await groups_of(request).join(body.group_name, place)
    except InfernoError as error:
        return failed(error)
    return succeeded("Succeeded to initialize custom process group.")


@post_body(UpdateFromGroupRequest, guards=[admin_only], responses=RESPONSES)
async def update_from_group(
    data: JSONBody[Parsed[UpdateFromGroupRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[dict[str, Any]]:
    """Receive weights. In a pause, or before others, they are loaded with all that follow."""
    body, llm, groups = data.body, models.named(None).llm, groups_of(request)
    dtypes = _checked(body)
    try:
        async with groups.turns:
            group = groups.named(body.group_name)
            await group.receive(body.names, dtypes, body.shapes, body.weight_version)
        if llm.is_paused or body.flush_cache is False:
            return succeeded("Received; loaded before generation continues.")
        await groups.load(llm, "abort" if body.abort_all_requests else "wait")
    except InfernoError as error:
        return failed(error)
    return succeeded("Succeeded to update parameter online.", weight_version=llm.weight_version)


@post_body(LeaveGroupRequest, guards=[admin_only], responses=RESPONSES)
async def leave_group(
    data: JSONBody[Parsed[LeaveGroupRequest]], request: Request[Any, Any, Any]
) -> Response[dict[str, Any]]:
    """Leave a process group."""
    try:
        await groups_of(request).leave(data.body.group_name)
    except InfernoError as error:
        return failed(error)
    return succeeded("Succeeded to destroy custom process group.")


def _checked(body: UpdateFromGroupRequest) -> list[str]:
    """Return the dtypes' names. Raises RequestError."""
    if not len(body.names) == len(body.dtypes) == len(body.shapes):
        raise RequestError(
            f"{len(body.names)} names, {len(body.dtypes)} dtypes and {len(body.shapes)} shapes",
            "Give one of each for every tensor.",
            param="names",
        )
    dtypes = [dtype.removeprefix("torch.") for dtype in body.dtypes]
    for name, dtype, shape in zip(body.names, dtypes, body.shapes, strict=True):
        if dtype not in COMPUTE_DTYPES:
            known = ", ".join(COMPUTE_DTYPES)
            raise RequestError(
                f"{name[:200]} is {dtype[:80]!r}", f"Send one of {known}.", param="dtypes"
            )
        if any(size <= 0 for size in shape):
            raise RequestError(
                f"{name[:200]} has the shape {shape}", "Send its sizes.", param="shapes"
            )
    return dtypes
