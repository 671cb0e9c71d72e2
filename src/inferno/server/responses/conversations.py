"""/v1/conversations: create, retrieve, update, delete, and their items."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, Response, delete, get
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from inferno.server.access.keys import owner_of
from inferno.server.fields.schema import ERROR_RESPONSES
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.responses.database import Database
from inferno.server.responses.history import resolved
from inferno.server.responses.items import Item, new_id, read_items
from inferno.server.responses.pages import After, Limit, Order, answer, answer_page, page_of
from inferno.server.responses.schema import (
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
)
from inferno.server.responses.store import Store, checked_id, not_found
from inferno.server.responses.stored import Page
from inferno.server.responses.translation import checked_metadata

Asked = Request[Any, Any, Any]


@post_body(ConversationRequest)
async def create_conversation(
    data: JSONBody[Parsed[ConversationRequest]], request: Asked, store: NamedDependency[Store]
) -> Response[Any]:
    """Create a conversation, with items that it begins with."""
    body, owner = data.body, owner_of(request)
    items = await _read(body.items or [], store, owner)
    made = {
        "id": new_id("conv"),
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": checked_metadata(body.metadata),
    }
    await store.run(Database.create, owner, made, items)
    return answer(made)


@get("/v1/conversations/{id:str}", responses=ERROR_RESPONSES)
async def get_conversation(
    id: FromPath[str], request: Asked, store: NamedDependency[Store]
) -> Response[Any]:
    """Return a conversation, without its items."""
    return answer(await _found(id, owner_of(request), store))


@post_body(ConversationUpdate, "/v1/conversations/{id:str}")
async def update_conversation(
    id: FromPath[str],
    data: JSONBody[Parsed[ConversationUpdate]],
    request: Asked,
    store: NamedDependency[Store],
) -> Response[Any]:
    """Replace a conversation's metadata."""
    metadata, owner = checked_metadata(data.body.metadata), owner_of(request)
    body = await _found(id, owner, store) | {"metadata": metadata}
    await store.run(Database.update, owner, body)
    return answer(body)


@delete("/v1/conversations/{id:str}", status_code=200, responses=ERROR_RESPONSES)
async def delete_conversation(
    id: FromPath[str], request: Asked, store: NamedDependency[Store]
) -> Response[Any]:
    """Delete a conversation and its items."""
    checked_id(id, "conversation")
    if not await store.run(Database.delete, "conversation", owner_of(request), id):
        raise not_found("conversation", id)
    return answer({"id": id, "object": "conversation.deleted", "deleted": True})


@post_body(ItemsRequest, "/v1/conversations/{id:str}/items")
async def create_items(
    id: FromPath[str],
    data: JSONBody[Parsed[ItemsRequest]],
    request: Asked,
    store: NamedDependency[Store],
) -> Response[Any]:
    """Add items to a conversation."""
    owner = owner_of(request)
    await _found(id, owner, store)
    items = await _read(data.body.items, store, owner)
    await store.run(Database.add, owner, id, items)
    return answer(page_of(Page(items, False)))


@get("/v1/conversations/{id:str}/items", responses=ERROR_RESPONSES)
async def list_items(
    id: FromPath[str],
    request: Asked,
    store: NamedDependency[Store],
    after: After = None,
    limit: Limit = 20,
    order: Order = "desc",
) -> Response[Any]:
    """List a conversation's items."""
    return await answer_page(store, owner_of(request), "conversation", id, after, limit, order)


@get("/v1/conversations/{id:str}/items/{item:str}", responses=ERROR_RESPONSES)
async def get_item(
    id: FromPath[str], item: FromPath[str], request: Asked, store: NamedDependency[Store]
) -> Response[Any]:
    """Return one item of a conversation."""
    checked_id(id, "conversation")
    stored = await store.run(Database.item, owner_of(request), item, id)
    if stored is None:
        raise not_found("item", item)
    return answer(stored)


@delete("/v1/conversations/{id:str}/items/{item:str}", status_code=200, responses=ERROR_RESPONSES)
async def delete_item(
    id: FromPath[str], item: FromPath[str], request: Asked, store: NamedDependency[Store]
) -> Response[Any]:
    """Delete one item of a conversation, which is returned."""
    owner = owner_of(request)
    body = await _found(id, owner, store)
    if not await store.run(Database.delete_item, owner, id, item):
        raise not_found("item", item)
    return answer(body)


async def _found(id: str, owner: str, store: Store) -> dict[str, Any]:
    body = await store.run(Database.conversation, owner, checked_id(id, "conversation"))
    if body is None:
        raise not_found("conversation", id)
    return body


async def _read(raw: list[dict[str, Any]], store: Store, owner: str) -> list[Item]:
    return await resolved(read_items(raw, "items"), store, owner, "items")
