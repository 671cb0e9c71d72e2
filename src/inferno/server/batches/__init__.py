"""OpenAI's Batch API: files of requests, and batches that answer them."""

from __future__ import annotations

from typing import Any

from inferno.server.batches import batches, files
from inferno.server.batches.schema import BatchRequest

HANDLERS = (
    files.upload_file,
    files.list_files,
    files.get_file,
    files.get_content,
    files.delete_file,
    batches.create_batch,
    batches.list_batches,
    batches.get_batch,
    batches.cancel_batch,
)
BODIES: tuple[type[Any], ...] = (BatchRequest,)
