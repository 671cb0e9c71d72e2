"""What a response continues: its conversation, the responses before it, the items it refers to."""

from __future__ import annotations

from inferno.errors import RequestError
from inferno.server.responses.database import Database
from inferno.server.responses.items import Item, read_items
from inferno.server.responses.schema import ResponsesRequest
from inferno.server.responses.store import Store, checked_id, not_found
from inferno.server.responses.translation import conversation_id


async def history(
    body: ResponsesRequest, store: Store, owner: str
) -> tuple[list[Item], list[Item]]:
    """Return the body's own items, and those before them. Raises RequestError."""
    new = await resolved(read_items(body.input or []), store, owner)
    before: list[Item] = []
    conversation, previous = conversation_id(body), body.previous_response_id
    if conversation is not None:
        checked_id(conversation, "conversation")
        stored = await store.run(Database.all_items, owner, conversation)
        if stored is None:
            raise not_found("conversation", conversation)
        before = stored
    elif previous is not None:
        before = await store.run(Database.chain, owner, previous)
    if not new and not before and not body.instructions:
        raise RequestError("there is no input", "Send a string or items in input.", param="input")
    return new, before


async def resolved(items: list[Item], store: Store, owner: str, param: str = "input") -> list[Item]:
    """Replace references by the stored items. Raises RequestError."""
    result = []
    for i, item in enumerate(items):
        if item["type"] == "item_reference":
            stored = await store.run(Database.item, owner, item["id"])
            if stored is None:
                raise RequestError(
                    f"{param}[{i}] refers to the item {item['id'][:80]!r}, which is not stored",
                    "Send the item itself.",
                    param=f"{param}[{i}].id",
                    code="item_not_found",
                )
            item = stored
        result.append(item)
    return result
