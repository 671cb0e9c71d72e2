"""Objects of OpenAI's Batch API."""

from __future__ import annotations

import time
import uuid
from typing import Any

Body = dict[str, Any]

WINDOW_SECONDS = 24 * 3600
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""Statuses of a batch that no longer runs."""
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
_MAX_NAME = 255


def file_of(name: str, nbytes: int, purpose: str) -> Body:
    """Return a new file."""
    return {
        "id": f"file-{uuid.uuid4().hex}",
        "object": "file",
        "bytes": nbytes,
        "created_at": int(time.time()),
        "expires_at": None,
        "filename": name[-_MAX_NAME:],
        "purpose": purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_of(input_file_id: str, endpoint: str, metadata: dict[str, str]) -> Body:
    """Return a new batch."""
    now = int(time.time())
    return {
        "id": f"batch_{uuid.uuid4().hex}",
        "object": "batch",
        "endpoint": endpoint,
        "errors": None,
        "input_file_id": input_file_id,
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + WINDOW_SECONDS,
        **{f"{name}_at": None for name in _TIMES},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": metadata,
    }


def enter(batch: Body, status: str) -> None:
    """Set a batch's status, and when it got it."""
    batch["status"] = status
    batch[f"{status}_at"] = int(time.time())


def problem(code: str, message: str, line: int | None = None) -> Body:
    """Return one of a batch's errors."""
    return {"code": code, "message": message, "param": None, "line": line}
