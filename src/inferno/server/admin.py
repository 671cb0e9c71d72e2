"""Endpoints for the server's operator: load and unload models, and see what keys have used."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen
from litestar import Request, get
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.server import support
from inferno.server.keys import Keys, admin_only
from inferno.server.limits import Key
from inferno.server.models import DRAIN_SECONDS, Models
from inferno.server.parsing import Parsed, post_body
from inferno.server.record import record_of
from inferno.server.slot import Slot
from inferno.server.support import Field


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


@post_body(LoadRequest, guards=[admin_only])
async def load_model(
    data: JSONBody[Parsed[LoadRequest]], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Load a model, and answer once it is loaded. One that is loaded stays as it is, unless its
    engine does not run: then it is loaded again."""
    slot = models.slot(data.body.model)
    if slot.status == "restarting":
        await models.unload(slot, 0)
    await models.load(slot)
    return _status(slot)


@post_body(UnloadRequest, guards=[admin_only])
async def unload_model(
    data: JSONBody[Parsed[UnloadRequest]], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Unload a model, pinned or not, and answer once its memory is free. Its requests may take
    `seconds` to end, then they are aborted."""
    slot, seconds = models.slot(data.body.model), data.body.seconds
    await models.unload(slot, DRAIN_SECONDS if seconds is None else max(0.0, seconds))
    return _status(slot)


@get("/v1/models/status", sync_to_thread=False, guards=[admin_only])
def models_status(models: NamedDependency[Models]) -> dict[str, Any]:
    """Describe what each model does, and the memory that is planned for it."""
    return {"models": [_status(slot) for slot in models.slots]}


@get("/v1/keys/usage", sync_to_thread=False)
def keys_usage(request: Request[Any, Any, Any], state: State) -> dict[str, Any]:
    """Report what the request's key has used since the server started; for an admin, what each key
    has."""
    keys: Keys = state.api_keys
    record = record_of(request.scope)
    own = record.key if record is not None else None
    shown = keys.all if own is None or own.admin else (own,)
    return {"keys": [_usage(key) for key in shown if own is not None]}


def _status(slot: Slot) -> dict[str, Any]:
    return {
        "name": slot.name,
        "aliases": slot.spec.names[1:],
        "ref": slot.spec.ref,
        "status": slot.status,
        "pinned": slot.spec.pin,
        "requests": slot.leases,
        "waiting": slot.waiting,
        "bytes": slot.nbytes,
        "device": slot.device or None,
        "idle_seconds": round(slot.clock() - slot.last_used, 1) if slot.is_idle else None,
        "unload_after": slot.spec.idle_seconds,
        "error": str(slot.error) if slot.error is not None else None,
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


HANDLERS = (load_model, unload_model, models_status, keys_usage)
BODIES: tuple[type[Any], ...] = (LoadRequest, UnloadRequest)
