"""Errors in Ollama's form: `{"error": "..."}`."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec

from inferno.errors import InfernoError
from inferno.server import errors


@frozen
class OllamaError:
    """The body of every error response."""

    error: str


def message(error: BaseException) -> str:
    """Return the error's text. Any exception but an InfernoError is opaque."""
    return str(errors.body(error)[1]["error"]["message"])


def error_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Litestar's handler for all exceptions of these endpoints."""
    response = errors.error_response(request, error)
    response.content = {"error": message(error)}
    return response


HANDLERS: dict[Any, Any] = {
    HTTPException: error_response,
    InfernoError: error_response,
    Exception: error_response,
}
RESPONSES = {
    status: ResponseSpec(OllamaError, description=text, generate_examples=False)
    for status, text in {
        400: "Invalid request, or a feature that this server does not support",
        401: "API key missing or wrong",
        404: "Model not found",
        413: "The body is too large",
        429: "Too many requests are waiting",
        503: "The engine is restarting, or the server is shutting down",
    }.items()
}
