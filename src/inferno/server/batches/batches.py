"""/v1/batches: create, list, retrieve, cancel."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from inferno.errors import RequestError
from inferno.server.access.keys import owner_of
from inferno.server.batches.files import found, listed
from inferno.server.batches.offline import URLS
from inferno.server.batches.schema import BatchRequest
from inferno.server.batches.service import Batches
from inferno.server.fields.schema import ERROR_RESPONSES
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.responses.pages import After, Limit, Order, answer
from inferno.server.responses.store import Store, checked_id, not_found
from inferno.server.responses.translation import checked_metadata
from inferno.server.storage.objects import batch_of

Asked = Request[Any, Any, Any]


@post_body(BatchRequest)
async def create_batch(
    data: JSONBody[Parsed[BatchRequest]],
    request: Asked,
    store: NamedDependency[Store],
    batches: NamedDependency[Batches],
) -> Response[Any]:
    """Answer the requests of a file, in the background."""
    body, owner = data.body, owner_of(request)
    if body.endpoint not in URLS:
        raise RequestError(
            f"batches do not run {body.endpoint[:80]!r}",
            f"Use one of: {', '.join(URLS)}.",
            param="endpoint",
        )
    if body.completion_window != "24h":
        raise RequestError(
            f"completion_window is {body.completion_window[:80]!r}",
            "Send 24h.",
            param="completion_window",
        )
    metadata = checked_metadata(body.metadata)
    await found("file", body.input_file_id, owner, store)
    made = batch_of(body.input_file_id, body.endpoint, metadata)
    await batches.add(owner, made)
    return answer(made)


@get("/v1/batches", responses=ERROR_RESPONSES)
async def list_batches(
    request: Asked,
    store: NamedDependency[Store],
    after: After = None,
    limit: Limit = 20,
    order: Order = "desc",
) -> Response[Any]:
    """List the key's batches."""
    return await listed(store, owner_of(request), "batch", after, limit, order)


@get("/v1/batches/{id:str}", responses=ERROR_RESPONSES)
async def get_batch(
    id: FromPath[str], request: Asked, store: NamedDependency[Store]
) -> Response[Any]:
    """Return a batch, with how many of its requests are done."""
    return answer(await found("batch", id, owner_of(request), store))


@post("/v1/batches/{id:str}/cancel", status_code=200, responses=ERROR_RESPONSES)
async def cancel_batch(
    id: FromPath[str], request: Asked, batches: NamedDependency[Batches]
) -> Response[Any]:
    """Stop a batch. The answers that are there stay."""
    batch = await batches.cancel(owner_of(request), checked_id(id, "batch"))
    if batch is None:
        raise not_found("batch", id)
    return answer(batch)
