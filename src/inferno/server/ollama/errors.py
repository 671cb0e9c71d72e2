"""Errors in Ollama's form: `{"error": "..."}`."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec

from inferno.errors import InfernoError
from inferno.server import errors
from inferno.server.schema import ERROR_RESPONSES


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
    status: ResponseSpec(OllamaError, description=spec.description, generate_examples=False)
    for status, spec in ERROR_RESPONSES.items()
}
OPTIONS: dict[str, Any] = {"responses": RESPONSES, "exception_handlers": HANDLERS}
"""Of each of its handlers."""
