"""Answers to updates of weights, whose clients look for `success`."""

from __future__ import annotations

from typing import Any

from litestar import Response

from inferno.errors import CheckpointError, InfernoError


def succeeded(message: str, **more: Any) -> Response[dict[str, Any]]:
    return Response({"success": True, "message": message, **more}, status_code=200)


def failed(error: InfernoError, **more: Any) -> Response[dict[str, Any]]:
    wrong = isinstance(error, CheckpointError)  # the tensors, not the server
    told = {"success": False, "message": str(error), **more}
    return Response(told, status_code=400 if wrong else error.status)
