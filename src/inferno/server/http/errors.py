"""OpenAI's error objects, with headers that say whether to retry."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import (
    HTTPException,
    InternalServerException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)

from inferno.errors import InfernoError, RequestError
from inferno.host import starved
from inferno.server.http.apis import Apis
from inferno.server.http.paths import Routes
from inferno.server.observe.record import current

log = logging.getLogger("inferno.server")

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
_MAX_MESSAGE = 2000
"""Maximum characters of a message: a validation error may quote a body of megabytes."""
CLIENT_LEFT = 499
"""nginx's status for a client that closed the connection, for metrics and logs."""
RETRY_AFTER = 2
"""Seconds clients should wait before a retry: about an engine's restart."""


def unsupported(name: str, remedy: str) -> RequestError:
    """The error for a known field that is not supported."""
    return RequestError(
        f"{name} is not supported here", remedy, param=name, code="unsupported_parameter"
    )


def shorten(text: str, limit: int = _MAX_MESSAGE) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def body(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON body. Any exception but an InfernoError becomes an opaque 500."""
    status, message, param, code = 500, "Internal server error.", None, None
    if isinstance(error, InfernoError):
        status, code = error.status, error.code
        message = " ".join(
            part if part.endswith((".", "!", "?")) else f"{part}." for part in _parts(error)
        )
        param = error.param if isinstance(error, RequestError) else None
    elif isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
        code = _CODES.get(status)
        if status == 413:
            message = "The body is too large. Send less at once; --max-body-bytes sets the limit."
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    if (record := current()) is not None:
        record.error = code or kind
    return status, {
        "error": {"message": shorten(message), "type": kind, "param": param, "code": code}
    }


def frame(error: BaseException) -> bytes:
    """Encode the error as a server-sent event: a stream's status is already sent."""
    if not isinstance(error, InfernoError) and (limit := starved(error)) is not None:
        error = limit
    if not isinstance(error, InfernoError):
        log.error("stream failed", exc_info=error)
    return b"data: " + msgspec.json.encode(body(error)[1]) + b"\n\n"


def error_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Litestar's handler for all exceptions."""
    if _has_left(error):
        log.debug("%s %s: the client left before it sent its request", request.method, request.url)
        return Response(b"", status_code=CLIENT_LEFT, media_type="application/json")
    if isinstance(error, NotFoundException | MethodNotAllowedException):
        error = _no_route(request, error)
    elif isinstance(error, ValidationException):
        error = _invalid(error)
    elif not isinstance(error, InfernoError):
        error = starved(error) or error
    status, content = body(error)
    if status >= 500 and not isinstance(error, InfernoError):
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return Response(
        content,
        status_code=status,
        media_type="application/json",
        headers=headers_of(error, status),
    )


def _no_route(request: Request[Any, Any, Any], error: HTTPException) -> HTTPException:
    """Name the methods or routes that exist instead, or the distribution that has the path."""
    routes: Routes = request.app.state.routes
    apis: Apis = request.app.state.apis
    path = shorten(request.url.path, 200)
    if methods := routes.methods(request.url.path):
        error.detail = f"{path} takes no {request.method}. Use {' or '.join(sorted(methods))}."
    elif missing := apis.missing(request.url.path):
        error.detail = f"There is no {path} here. {missing}"
    else:
        near = routes.near(request.url.path)
        remedy = f"Did you mean {' or '.join(near)}?" if near else "See /schema for all paths."
        error.detail = f"There is no {path} here. {remedy}"
    return error


def _invalid(error: ValidationException) -> Exception:
    """Name what Litestar could not read: the body, if there is none, or a parameter."""
    fault = error.extra[0] if isinstance(error.extra, list) and error.extra else None
    if not isinstance(fault, dict) or "key" not in fault:
        return error
    if fault.get("source") == "body":  # other faults of a body are found by `parsing.decode`
        return RequestError("the body is empty", "Send one JSON object.")
    name = str(fault["key"])
    return RequestError(f"{name}: {fault['message']}", "Correct it.", param=name)


def _has_left(error: Exception) -> bool:
    """Whether Litestar could not read a body because the client closed the connection."""
    return isinstance(error, InternalServerException) and "disconnected" in error.detail


def _parts(error: InfernoError) -> list[str]:
    return [" ".join(part.split()) for part in (error.cause, error.remedy) if part]


def headers_of(error: Exception, status: int) -> dict[str, str]:
    """Return the headers of an error's answer."""
    # OpenAI's clients retry on 408, 409, 429 and every 5xx, unless this header says no.
    headers: dict[str, str] = {"x-should-retry": "true" if status in (429, 503) else "false"}
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    carried: Mapping[str, str] | None = getattr(error, "headers", None)  # 405 carries Allow
    return headers | dict(carried or {})
