"""What a trainer does between two rounds: pauses, other weights, memory that is given back."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get, post, route
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody

from inferno.errors import CheckpointError, InfernoError, RequestError
from inferno.server.api import Models, Parsed, admin_only, post_body
from inferno_sglang.answers import RESPONSES, failed, succeeded
from inferno_sglang.groups import groups_of
from inferno_sglang.running import running_of
from inferno_sglang.schema import AbortRequest, MemoryRequest, PauseRequest, UpdateFromDiskRequest

_MODES = {"abort": "abort", "retract": "keep", "in_place": "keep"}


@post_body(AbortRequest, guards=[admin_only])
async def abort_request(
    data: JSONBody[Parsed[AbortRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> dict[str, str]:
    """End a request by its `rid`, or all. One that is unknown has ended."""
    if data.body.abort_all:
        llm = models.named(None).llm
        was_paused = llm.is_paused
        await llm.pause("abort")
        if not was_paused:
            await llm.resume()
    elif (ended := running_of(request).get(data.body.rid or "")) is not None:
        ended()
    return {"status": "ok"}


@route(
    ["/flush_cache", "/reset_prefix_cache"],
    http_method=["GET", "POST"],
    status_code=200,
    media_type="text/plain",
    guards=[admin_only],
)
async def flush_cache(
    request: Request[Any, Any, Any], models: NamedDependency[Models]
) -> Response[str]:
    """Load weights that were received, and forget what memory has of earlier prompts."""
    await _load_received(request, models)
    await models.named(None).llm.reset_prefix_cache()
    return Response("Cache flushed.\n")


@post_body(PauseRequest, guards=[admin_only])
async def pause_generation(
    data: JSONBody[Parsed[PauseRequest]], models: NamedDependency[Models]
) -> dict[str, str]:
    """Compute nothing until POST /continue_generation."""
    mode = data.body.mode or "abort"
    if mode not in _MODES:
        known = ", ".join(_MODES)
        raise RequestError(f"the mode is {mode[:80]!r}", f"It is one of {known}.", param="mode")
    await models.named(None).llm.pause(_MODES[mode])
    return {"message": "Generation paused successfully.", "status": "ok"}


@post("/continue_generation", status_code=200, guards=[admin_only])
async def continue_generation(
    request: Request[Any, Any, Any], models: NamedDependency[Models]
) -> dict[str, str]:
    """Go on after a pause, with the weights that were received in it."""
    await _load_received(request, models)
    await models.named(None).llm.resume()
    return {"message": "Generation continued successfully.", "status": "ok"}


@post("/pause", status_code=200, guards=[admin_only])
async def pause(models: NamedDependency[Models], mode: FromQuery[str] = "abort") -> dict[str, str]:
    """Compute nothing until POST /resume, as vLLM: the query's `mode` is abort, wait or keep."""
    await models.named(None).llm.pause(mode)
    return {"status": "paused"}


@post("/resume", status_code=200, guards=[admin_only])
async def resume(
    request: Request[Any, Any, Any], models: NamedDependency[Models]
) -> dict[str, str]:
    """Go on after a pause, as vLLM."""
    await _load_received(request, models)
    await models.named(None).llm.resume()
    return {"status": "resumed"}


async def _load_received(request: Request[Any, Any, Any], models: Models) -> None:
    """Load the weights that were received. Raises RequestError for those that do not fit: they are
    forgotten, and the model has its old ones, in a pause still."""
    try:
        await groups_of(request).load(models.named(None).llm)
    except CheckpointError as error:
        raise RequestError(error.cause, error.remedy, param="names") from error


@get("/is_paused", guards=[admin_only])
async def is_paused(models: NamedDependency[Models]) -> dict[str, bool]:
    """Say whether nothing is computed, as vLLM."""
    return {"is_paused": models.named(None).llm.is_paused}


@post_body(MemoryRequest, guards=[admin_only])
async def release_memory(
    data: JSONBody[Parsed[MemoryRequest]], models: NamedDependency[Models]
) -> Response[None]:
    """Give memory back: the cache's first, and a device's of weights."""
    _tags(data.body)
    llm = models.named(None).llm
    if not llm.is_sleeping:
        await llm.sleep(1)
    return Response(None, status_code=200)


@post_body(MemoryRequest, "/resume_memory_occupation", guards=[admin_only])
async def resume_memory(
    data: JSONBody[Parsed[MemoryRequest]], models: NamedDependency[Models]
) -> Response[None]:
    """Have the memory again: the cache's last."""
    llm = models.named(None).llm
    if llm.is_sleeping:
        await llm.wake_up(_tags(data.body))
    return Response(None, status_code=200)


def _tags(body: MemoryRequest) -> list[str]:
    """Return vLLM's tags for SGLang's; none for all. Raises RequestError."""
    for tag in body.tags or ():
        if tag not in ("weights", "kv_cache", "cuda_graph"):
            raise RequestError(
                f"the tag {tag[:80]!r} is not known",
                "Known: weights, kv_cache, cuda_graph.",
                param="tags",
            )
    return ["weights"] if body.tags and "kv_cache" not in body.tags else []


@post_body(UpdateFromDiskRequest, guards=[admin_only], responses=RESPONSES)
async def update_from_disk(
    data: JSONBody[Parsed[UpdateFromDiskRequest]], models: NamedDependency[Models]
) -> Response[dict[str, Any]]:
    """Replace weights by those of a file or a folder on the server."""
    body, llm = data.body, models.named(None).llm
    mode = "abort" if body.abort_all_requests else "wait"
    try:
        version = await llm.update_weights(body.model_path, version=body.weight_version, mode=mode)
    except InfernoError as error:
        return failed(error, num_paused_requests=0)
    return succeeded(
        "Succeeded to update model weights.", num_paused_requests=0, weight_version=version
    )
