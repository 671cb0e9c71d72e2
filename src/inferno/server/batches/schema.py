"""The bodies of the files and batches of OpenAI's Batch API."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen
from litestar.datastructures import UploadFile

from inferno.server.fields.support import Field, honoured

BATCHES = (
    *honoured(
        input_file_id="A file of requests, uploaded with the purpose `batch`.",
        endpoint="The `url` of every request in the file.",
        completion_window="24h: what is not done by then is not done.",
        metadata="Up to 16 strings.",
    ),
    Field("output_expires_after", "accepted", "`--store-days` is for all files."),
)


@frozen(kw_only=True)
class BatchRequest:
    """The body of POST /v1/batches."""

    path: ClassVar[str] = "/v1/batches"
    rows: ClassVar[tuple[Field, ...]] = BATCHES

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, Any] | None = None


@frozen(kw_only=True)
class FileUpload:
    """The form of POST /v1/files."""

    file: UploadFile
    purpose: str = "batch"
