"""Lists of items, page by page."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from litestar import Response
from litestar.params import FromQuery, QueryParameter

from inferno.server.responses.database import Page

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


def answer(body: dict[str, Any]) -> Response[Any]:
    return Response(body, media_type="application/json")
