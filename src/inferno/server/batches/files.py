"""/v1/files: upload, list, retrieve, content, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.enums import RequestEncodingType
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body, FromPath, FromQuery
from litestar.response import Stream

from inferno.errors import RequestError
from inferno.server.access.keys import owner_of
from inferno.server.batches.schema import FileUpload
from inferno.server.fields.schema import ERROR_RESPONSES
from inferno.server.responses.pages import After, Limit, Order, answer, page_of
from inferno.server.responses.store import Store, checked_id, not_found
from inferno.server.responses.stored import Page
from inferno.server.storage.files import Kind
from inferno.server.storage.objects import file_of

Asked = Request[Any, Any, Any]
_PART = 2**20
"""Bytes of a part of an uploaded file."""
_CONTENT = {
    200: ResponseSpec(
        bytes,
        description="The file's content",
        media_type="application/octet-stream",
        generate_examples=False,
    ),
    **ERROR_RESPONSES,
}


@post("/v1/files", status_code=200, responses=ERROR_RESPONSES)
async def upload_file(
    data: Annotated[FileUpload, Body(media_type=RequestEncodingType.MULTI_PART)],
    request: Asked,
    store: NamedDependency[Store],
) -> Response[Any]:
    """Store a file of requests for a batch: a form with `file` and `purpose`."""
    if data.purpose != "batch":
        raise RequestError(
            f"files with the purpose {data.purpose[:80]!r} have no use here",
            "Send the purpose batch, and a file of requests.",
            param="purpose",
        )
    parts = []
    while part := await data.file.read(_PART):
        parts.append(part)
    if not parts:
        raise RequestError("the file is empty", "Send one request a line.", param="file")
    made = file_of(data.file.filename or "file", sum(map(len, parts)), "batch")
    owner = owner_of(request)
    await store.run(lambda db: db.files.create("file", owner, made, parts))
    return answer(made)


@get("/v1/files", responses=ERROR_RESPONSES)
async def list_files(
    request: Asked,
    store: NamedDependency[Store],
    purpose: FromQuery[str | None] = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
) -> Response[Any]:
    """List the key's files."""
    members = {"purpose": purpose} if purpose is not None else {}
    return await listed(store, owner_of(request), "file", after, limit, order, **members)


@get("/v1/files/{id:str}", responses=ERROR_RESPONSES)
async def get_file(
    id: FromPath[str], request: Asked, store: NamedDependency[Store]
) -> Response[Any]:
    """Return a file's object."""
    return answer(await found("file", id, owner_of(request), store))


@get("/v1/files/{id:str}/content", responses=_CONTENT)
async def get_content(id: FromPath[str], request: Asked, store: NamedDependency[Store]) -> Stream:
    """Return a file's content."""
    await found("file", id, owner_of(request), store)

    async def part_at(position: int) -> bytes | None:
        return await store.run(lambda db: db.files.part(id, position))

    async def parts() -> AsyncIterator[bytes]:
        position = 0
        while (part := await part_at(position)) is not None:
            yield part
            position += 1

    return Stream(parts(), media_type="application/octet-stream")


@delete("/v1/files/{id:str}", status_code=200, responses=ERROR_RESPONSES)
async def delete_file(
    id: FromPath[str], request: Asked, store: NamedDependency[Store]
) -> Response[Any]:
    """Delete a file. A batch that has begun to read it goes on."""
    owner = owner_of(request)
    checked_id(id, "file")
    if not await store.run(lambda db: db.files.delete("file", owner, id)):
        raise not_found("file", id)
    return answer({"id": id, "object": "file", "deleted": True})


async def found(kind: Kind, id: str, owner: str, store: Store) -> dict[str, Any]:
    """Return the object of a file or a batch. Raises NotFoundError."""
    checked_id(id, kind)
    body = await store.run(lambda db: db.files.find(kind, owner, id))
    if body is None:
        raise not_found(kind, id)
    return body


async def listed(
    store: Store,
    owner: str,
    kind: Kind,
    after: str | None,
    limit: int,
    order: str,
    **members: Any,
) -> Response[Any]:
    """Answer with a page of an owner's files or batches. Raises RequestError."""
    page = await store.run(lambda db: db.files.page(kind, owner, after, limit, order, **members))
    if page is None:
        raise RequestError(
            f"after names no {kind}: {str(after)[:80]!r}", "Give a listed id.", param="after"
        )
    return answer(page_of(Page(*page)))
