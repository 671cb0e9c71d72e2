"""Errors in Ollama's form: `{"error": "..."}`."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from litestar.openapi.datastructures import ResponseSpec

from inferno.server.fields.schema import ERROR_RESPONSES
from inferno.server.http import errors

PATH = "/api/"
"""What the API's paths begin with."""


@frozen
class OllamaError:
    """The body of every error response."""

    error: str


def formatted(status: int, body: dict[str, Any], request_id: str = "") -> dict[str, Any]:
    """Return the body of an error in OpenAI's format in Ollama's."""
    return {"error": body["error"]["message"]}


def message(error: BaseException) -> str:
    """Return the error's text. Any exception but an InfernoError is opaque."""
    return str(errors.body(error)[1]["error"]["message"])


RESPONSES = {
    status: ResponseSpec(OllamaError, description=spec.description, generate_examples=False)
    for status, spec in ERROR_RESPONSES.items()
}
