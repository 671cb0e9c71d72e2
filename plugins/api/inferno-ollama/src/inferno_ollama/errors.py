"""Errors in Ollama's form: `{"error": "..."}`."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from litestar.openapi.datastructures import ResponseSpec

from inferno.server.api import ERROR_RESPONSES, error_body


@frozen
class OllamaError:
    """The body of every error response."""

    error: str


def formatted(status: int, body: dict[str, Any], request_id: str = "") -> dict[str, Any]:
    """Return the body of an error in OpenAI's format in Ollama's."""
    return {"error": body["error"]["message"]}


def message(error: BaseException) -> str:
    """Return the error's text. Any exception but an InfernoError is opaque."""
    return str(error_body(error)[1]["error"]["message"])


RESPONSES = {
    status: ResponseSpec(OllamaError, description=spec.description, generate_examples=False)
    for status, spec in ERROR_RESPONSES.items()
}
