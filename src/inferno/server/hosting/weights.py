"""Endpoints for the server's operator: a model sleeps, wakes up, and has its weights replaced."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from attrs import frozen
from litestar import Request, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import CheckpointError, RequestError
from inferno.server.access.keys import admin_only
from inferno.server.fields import support
from inferno.server.fields.support import Field
from inferno.server.hosting.models import Models
from inferno.server.http.parsing import Parsed, decode, post_body, read

T = TypeVar("T")


@frozen(kw_only=True)
class SleepRequest:
    """The body or the query of POST /v1/sleep."""

    path: ClassVar[str] = "/v1/sleep"
    rows: ClassVar[tuple[Field, ...]] = support.SLEEP

    model: str | None = None
    level: int = 1
    mode: str = "wait"


@frozen(kw_only=True)
class WakeRequest:
    """The body or the query of POST /v1/wake_up."""

    path: ClassVar[str] = "/v1/wake_up"
    rows: ClassVar[tuple[Field, ...]] = support.WAKE_UP

    model: str | None = None
    tags: list[str] | None = None


@frozen(kw_only=True)
class UpdateWeightsRequest:
    """The body of POST /v1/update_weights."""

    path: ClassVar[str] = "/v1/update_weights"
    rows: ClassVar[tuple[Field, ...]] = support.UPDATE_WEIGHTS

    weights: str
    model: str | None = None
    weight_version: str | None = None
    mode: str = "wait"


@post(SleepRequest.path, status_code=200, guards=[admin_only])
async def sleep(request: Request[Any, Any, Any], models: NamedDependency[Models]) -> dict[str, Any]:
    """Give back the memory of a model's cache, and of its weights. Its fields may be a body, or in
    the query, as vLLM's are."""
    fields = await _given(request, SleepRequest)
    llm = models.named(fields.model).llm
    await llm.sleep(fields.level, mode=fields.mode)
    return {"is_sleeping": llm.is_sleeping}


@post(WakeRequest.path, status_code=200, guards=[admin_only])
async def wake_up(
    request: Request[Any, Any, Any], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Have the memory again that a model gave back when it was put to sleep."""
    fields = await _given(request, WakeRequest)
    llm = models.named(fields.model).llm
    await llm.wake_up(fields.tags)
    return {"is_sleeping": llm.is_sleeping}


@get("/v1/is_sleeping", sync_to_thread=False, guards=[admin_only])
def is_sleeping(request: Request[Any, Any, Any], models: NamedDependency[Models]) -> dict[str, Any]:
    """Say whether a model, the first one unless the query has `model`, is asleep."""
    return {"is_sleeping": models.named(request.query_params.get("model")).llm.is_sleeping}


@post_body(UpdateWeightsRequest, guards=[admin_only])
async def update_weights(
    data: JSONBody[Parsed[UpdateWeightsRequest]], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Replace weights of a model by those of a file on the server, and answer once requests are
    computed with them."""
    body = data.body
    llm = models.named(body.model).llm
    try:
        version = await llm.update_weights(
            body.weights, version=body.weight_version, mode=body.mode
        )
    except CheckpointError as error:
        raise RequestError(error.cause, error.remedy, param="weights") from error
    return {"weight_version": version, "is_sleeping": llm.is_sleeping}


async def _given(request: Request[Any, Any, Any], cls: type[T]) -> T:
    """Read fields from the body, if there is one, and from the query. Raises RequestError."""
    strict = request.app.state.strict_params
    if body := await request.body():
        return decode(body, cls, strict=strict).body
    query: dict[str, Any] = dict(request.query_params)
    if "level" in query:
        try:
            query["level"] = int(query["level"])
        except ValueError:
            pass  # then it is no number, as the parser says
    if "tags" in query:
        query["tags"] = request.query_params.getall("tags")
    return read(query, cls, strict=strict).body


HANDLERS = (sleep, wake_up, is_sleeping, update_weights)
BODIES: tuple[type[Any], ...] = (SleepRequest, WakeRequest, UpdateWeightsRequest)
