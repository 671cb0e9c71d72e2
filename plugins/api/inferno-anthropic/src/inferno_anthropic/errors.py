"""Anthropic's error objects."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from litestar.openapi.datastructures import ResponseSpec

from inferno.server.api import ERROR_RESPONSES, error_body

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@frozen(kw_only=True)
class MessageError:
    """An error in Anthropic's format."""

    type: str
    message: str


@frozen(kw_only=True)
class MessageErrorBody:
    """The body of every error response of Anthropic's API."""

    error: MessageError
    request_id: str
    type: str = "error"


def formatted(status: int, body: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Return the body of an error in OpenAI's format in Anthropic's."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    shown = {"type": kind, "message": body["error"]["message"]}
    return {"type": "error", "error": shown, "request_id": request_id}


def message_error(error: BaseException, request_id: str) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON body. Any exception but an InfernoError becomes an opaque 500."""
    status, body = error_body(error)
    return status, formatted(status, body, request_id)


RESPONSES = {
    status: ResponseSpec(MessageErrorBody, description=spec.description, generate_examples=False)
    for status, spec in ERROR_RESPONSES.items()
}
"""Error responses in the OpenAPI schema."""
