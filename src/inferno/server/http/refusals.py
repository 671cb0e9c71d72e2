"""Errors in the format of the API that the request's path belongs to: of handlers, of requests that
the gate refuses, and where there is no route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.types import Send

from inferno.server.anthropic import errors as anthropic
from inferno.server.http import errors
from inferno.server.ollama import errors as ollama

_FORMATS: Mapping[str, Callable[[int, dict[str, Any], str], dict[str, Any]]] = {
    anthropic.PATH: anthropic.formatted,
    ollama.PATH: ollama.formatted,
}
"""By what paths begin with; all others have OpenAI's."""


def formatted(path: str, status: int, body: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Return the body of an error in OpenAI's format in that of the path's API."""
    for prefix, form in _FORMATS.items():
        if path.startswith(prefix):
            return form(status, body, request_id)
    return body


async def refuse(error: Exception, path: str, request_id: str, send: Send) -> None:
    """Answer with an error, without a route."""
    status, body = errors.body(error)
    payload = msgspec.json.encode(formatted(path, status, body, request_id))
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
    if response.content:
        id, status = anthropic.request_id_of(request), response.status_code or 500
        response.content = formatted(path, status, response.content, id)
        if path.startswith(anthropic.PATH):
            response.headers["request-id"] = id
    return response
