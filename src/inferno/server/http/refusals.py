"""Errors in the format of the API that the request's path belongs to: of handlers, of requests that
the gate refuses, and where there is no route."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response
from litestar.types import Send

from inferno.server.http import errors
from inferno.server.http.apis import Apis
from inferno.server.observe.record import request_id_of


async def refuse(error: Exception, path: str, request_id: str, send: Send, apis: Apis) -> None:
    """Answer with an error, without a route."""
    status, body = errors.body(error)
    payload = msgspec.json.encode(apis.formatted(path, status, body, request_id))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(payload)).encode()),
        *((n.lower().encode(), v.encode()) for n, v in errors.headers_of(error, status).items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": payload, "more_body": False})


def error_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Litestar's handler for all exceptions."""
    response, path = errors.error_response(request, error), request.scope["path"]
    apis: Apis = request.app.state.apis
    if response.content:
        id, status = request_id_of(request), response.status_code or 500
        response.content = apis.formatted(path, status, response.content, id)
        if (api := apis.of(path)) is not None and api.request_id_header:
            response.headers[api.request_id_header] = id
    return response
