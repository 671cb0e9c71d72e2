"""GET and DELETE of /v1/sessions: what is kept for the client's key, on every model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from litestar import Request, delete, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, Parameter

from inferno.contracts import SessionView
from inferno.errors import NotFoundError
from inferno.server.api import Api, Models, ServedModel, current_record, shorten, usable_models

MOST = 100
"""Sessions of one model in a list. Each of their blocks is looked up."""


@get("/v1/sessions")
async def list_sessions(
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
    limit: FromQuery[Annotated[int, Parameter(ge=1, le=MOST)]] = 20,
) -> dict[str, Any]:
    """List the sessions of the client's key, of each model those used last first."""
    bodies = list[dict[str, Any]]()
    for model in _served(request, models):
        views = await model.llm.sessions(owner=_owner(), limit=limit)
        bodies += [_body(model, view) for view in views]
    return {"object": "list", "data": bodies}


@get("/v1/sessions/{name:path}")
async def get_session(
    name: FromPath[str], request: Request[Any, Any, Any], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Report what is kept of a session of the client's key: where its tokens are, and how long."""
    name = name.removeprefix("/")
    bodies = list[dict[str, Any]]()
    for model in _served(request, models):
        views = await model.llm.sessions(name, owner=_owner())
        bodies += [_body(model, view) for view in views]
    if not bodies:
        raise _unknown(name)
    return bodies[0] if len(bodies) == 1 else {**bodies[0], "models": bodies}


@delete("/v1/sessions/{name:path}", status_code=200)
async def delete_session(
    name: FromPath[str], request: Request[Any, Any, Any], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Forget a session of the client's key, and what is cached for it alone."""
    name = name.removeprefix("/")
    ended = [
        await model.llm.end_session(name, owner=_owner()) for model in _served(request, models)
    ]
    if not any(ended):
        raise _unknown(name)
    return {"id": name, "object": "session", "deleted": True}


def _served(request: Request[Any, Any, Any], models: Models) -> Iterator[ServedModel]:
    """Return the loaded models that the key may use and that keep sessions."""
    served: Sequence[ServedModel | None] = [
        hosted.served for hosted in usable_models(request, models)
    ]
    return (each for each in served if each is not None and each.llm.plan.sessions is not None)


def _owner() -> str:
    record = current_record()
    return "" if record is None else record.owner


def _body(model: ServedModel, view: SessionView) -> dict[str, Any]:
    return {
        "id": view.name,
        "object": "session",
        "model": model.names[0],
        "tokens": view.tokens,
        "pinned_tokens": view.pinned,
        "held_tokens": {"memory": view.memory, "host": view.host, "disk": view.disk},
        "expires_in": round(view.ttl, 3),
        "quota_tokens": view.quota,
    }


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(
        f"no session {shorten(name, 80)!r} of this key is kept",
        "GET /v1/sessions lists those that are: they end some time after their last request.",
    )


API = Api(handlers=(list_sessions, get_session, delete_session))
