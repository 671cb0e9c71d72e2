"""Answers to updates of weights, whose clients look for `success`."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from litestar import Response
from litestar.openapi.datastructures import ResponseSpec

from inferno.errors import CheckpointError, InfernoError
from inferno.server.api import ERROR_RESPONSES, ErrorBody


@frozen(kw_only=True)
class UpdateFailure:
    """The body of an update that failed. A request that is wrong has an `ErrorBody`."""

    success: bool
    message: str
    num_paused_requests: int | None = None


_BODIES: Any = ErrorBody | UpdateFailure
RESPONSES = {
    status: ResponseSpec(_BODIES, description=spec.description, generate_examples=False)
    for status, spec in ERROR_RESPONSES.items()
}
"""Error responses of updates in the OpenAPI schema."""


def succeeded(message: str, **more: Any) -> Response[dict[str, Any]]:
    return Response({"success": True, "message": message, **more}, status_code=200)


def failed(error: InfernoError, **more: Any) -> Response[dict[str, Any]]:
    wrong = isinstance(error, CheckpointError)  # the tensors, not the server
    told = {"success": False, "message": str(error), **more}
    return Response(told, status_code=400 if wrong else error.status)
