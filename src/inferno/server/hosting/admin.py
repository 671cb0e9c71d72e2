"""Endpoints for the server's operator: load and unload models, and see what keys have used."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen
from litestar import Request, get
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import (
    CheckpointError,
    ModelNotFoundError,
    OptionError,
    RequestError,
    UnsupportedError,
)
from inferno.server.access.keys import Keys, admin_only
from inferno.server.access.limits import Key
from inferno.server.fields import support
from inferno.server.fields.support import Field
from inferno.server.hosting.hosted_model import HostedModel
from inferno.server.hosting.models import DRAIN_SECONDS, Models
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.observe.record import record_of

MAX_NAME = 200
"""Characters of an adapter's name."""


@frozen(kw_only=True)
class LoadRequest:
    """The body of POST /v1/models/load."""

    path: ClassVar[str] = "/v1/models/load"
    rows: ClassVar[tuple[Field, ...]] = support.LOAD

    model: str


@frozen(kw_only=True)
class UnloadRequest:
    """The body of POST /v1/models/unload."""

    path: ClassVar[str] = "/v1/models/unload"
    rows: ClassVar[tuple[Field, ...]] = support.UNLOAD

    model: str
    seconds: float | None = None


@frozen(kw_only=True)
class LoadLoraRequest:
    """The body of POST /v1/load_lora_adapter."""

    path: ClassVar[str] = "/v1/load_lora_adapter"
    rows: ClassVar[tuple[Field, ...]] = support.LOAD_LORA

    lora_name: str
    lora_path: str
    base_model_name: str | None = None


@frozen(kw_only=True)
class UnloadLoraRequest:
    """The body of POST /v1/unload_lora_adapter."""

    path: ClassVar[str] = "/v1/unload_lora_adapter"
    rows: ClassVar[tuple[Field, ...]] = support.UNLOAD_LORA

    lora_name: str


@post_body(LoadLoraRequest, guards=[admin_only])
async def load_lora_adapter(
    data: JSONBody[Parsed[LoadLoraRequest]], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Load a low-rank adapter, and answer once the engine has read and checked it. Another one of
    that name is replaced: requests that run keep theirs."""
    body = data.body
    hosted = models.get(body.base_model_name)
    taken = body.lora_name in models.names and body.lora_name not in hosted.adapters
    if taken or not 0 < len(body.lora_name) <= MAX_NAME:
        raise RequestError(
            f"an adapter cannot be called {body.lora_name[:80]!r}",
            f"Choose a name of at most {MAX_NAME} characters that no model has.",
            param="lora_name",
        )
    async with models.lease(hosted.name) as model:
        try:
            use = await model.llm.load_lora(body.lora_name, body.lora_path)
        except (CheckpointError, OptionError, UnsupportedError) as error:
            raise RequestError(error.cause, error.remedy, param="lora_path") from error
    return {
        "id": body.lora_name,
        "object": "model",
        "root": use.ref,
        "parent": hosted.name,
        "rank": use.rank,
        "modules": use.count,
    }


@post_body(UnloadLoraRequest, guards=[admin_only])
async def unload_lora_adapter(
    data: JSONBody[Parsed[UnloadLoraRequest]], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Forget an adapter's name. Requests that run keep the adapter."""
    name = data.body.lora_name
    for hosted in models.hosted:
        if name in hosted.adapters:
            models.named(hosted.name).preprocessor.adapters.remove(name)
            return {"id": name, "object": "model", "deleted": True}
    raise ModelNotFoundError(
        f"there is no adapter {name[:80]!r}", "GET /v1/models lists them, each with its parent."
    )


@post_body(LoadRequest, guards=[admin_only])
async def load_model(
    data: JSONBody[Parsed[LoadRequest]], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Load a model, and answer once it is loaded. One that is loaded stays as it is, unless its
    engine does not run: then it is loaded again."""
    hosted = models.get(data.body.model)
    some = any(state in ("restarting", "stalled") for state in hosted.engines.values())
    if some or hosted.status in ("restarting", "stalled"):
        lone = hosted.spec.make is None  # it cannot be unloaded
        if hosted.served is not None and (lone or hosted.served.llm.alive):
            await hosted.served.llm.revive()
        else:
            await models.unload(hosted, 0)
    await models.load(hosted)
    return _status(hosted)


@post_body(UnloadRequest, guards=[admin_only])
async def unload_model(
    data: JSONBody[Parsed[UnloadRequest]], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Unload a model, pinned or not, and answer once its memory is free. Its requests may take
    `seconds` to end, then they are aborted."""
    hosted, seconds = models.get(data.body.model), data.body.seconds
    await models.unload(hosted, DRAIN_SECONDS if seconds is None else max(0.0, seconds))
    return _status(hosted)


@get("/v1/models/status", sync_to_thread=False, guards=[admin_only])
def models_status(models: NamedDependency[Models]) -> dict[str, Any]:
    """Describe what each model does, and the memory that is planned for it."""
    return {"models": [_status(hosted) for hosted in models.hosted]}


@get("/v1/keys/usage", sync_to_thread=False)
def keys_usage(request: Request[Any, Any, Any], state: State) -> dict[str, Any]:
    """Report what the request's key has used since the server started; for an admin, what each key
    has."""
    keys: Keys = state.api_keys
    record = record_of(request.scope)
    caller = record.key if record is not None else None
    shown = keys.all if caller is None or caller.admin else (caller,)
    return {"keys": [_usage(key) for key in shown if caller is not None]}


def _status(hosted: HostedModel) -> dict[str, Any]:
    return {
        "name": hosted.name,
        "aliases": hosted.spec.names[1:],
        "ref": hosted.spec.ref,
        "status": hosted.status,
        "pinned": hosted.spec.pin,
        "requests": hosted.leases,
        "waiting": hosted.waiting,
        "bytes": hosted.nbytes,
        "device": hosted.device or None,
        "idle_seconds": round(hosted.clock() - hosted.last_used, 1) if hosted.is_idle else None,
        "unload_after": hosted.spec.idle_seconds,
        "engines": hosted.engines or None,
        "error": str(hosted.error) if hosted.error is not None else None,
    }


def _usage(key: Key) -> dict[str, Any]:
    usage = key.account.usage
    return {
        "name": key.name,
        "running": key.account.running,
        "requests": usage.requests,
        "rejected": usage.rejected,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
    }


HANDLERS = (
    load_model,
    unload_model,
    load_lora_adapter,
    unload_lora_adapter,
    models_status,
    keys_usage,
)
BODIES: tuple[type[Any], ...] = (LoadRequest, UnloadRequest, LoadLoraRequest, UnloadLoraRequest)
