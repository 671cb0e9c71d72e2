"""Lists of items, page by page."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from litestar import Response
from litestar.params import FromQuery, QueryParameter

from inferno.server.responses.database import Database
from inferno.server.responses.store import Store, checked_id, not_found
from inferno.server.responses.stored import Kind, Page

After: TypeAlias = FromQuery[str | None]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=100)]
Order: TypeAlias = FromQuery[Literal["asc", "desc"]]


def page_of(page: Page) -> dict[str, Any]:
    """OpenAI's list object."""
    return {
        "object": "list",
        "data": page.items,
        "first_id": page.items[0]["id"] if page.items else "",
        "last_id": page.items[-1]["id"] if page.items else "",
        "has_more": page.more,
    }


async def answer_page(
    store: Store, owner: str, kind: Kind, id: str, after: str | None, limit: int, order: str
) -> Response[Any]:
    """Answer with a page of a record's items. Raises NotFoundError."""
    checked_id(id, kind)
    page = await store.run(Database.page, kind, owner, id, after, limit, order)
    if page is None:
        raise not_found(kind, id)
    return answer(page_of(page))


def answer(body: dict[str, Any]) -> Response[Any]:
    return Response(body, media_type="application/json")
