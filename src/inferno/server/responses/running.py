"""The responses that are being generated, by id: to look at one, and to cancel it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferno.server.responses.shape import ResponsesShape


class Running:
    """(Not an attrs class: Litestar would inspect it.)"""

    def __init__(self) -> None:
        self._shapes: dict[str, ResponsesShape] = {}

    def add(self, shape: ResponsesShape) -> None:
        self._shapes[shape.id] = shape

    def remove(self, shape: ResponsesShape) -> None:
        self._shapes.pop(shape.id, None)

    def find(self, owner: str, id: str) -> ResponsesShape | None:
        """Return a response that its owner started."""
        found = self._shapes.get(id)
        return found if found is not None and found.context.owner == owner else None
