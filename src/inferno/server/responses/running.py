"""The responses that are being generated, by id: to look at one, and to cancel it."""

from __future__ import annotations

from typing import Any, Protocol


class RunningResponse(Protocol):
    """A response that is being generated."""

    stores: bool
    """Whether it will be stored."""

    @property
    def is_background(self) -> bool:
        """Whether it is stored before it has ended."""

    @property
    def id(self) -> str: ...

    @property
    def owner(self) -> str:
        """Digest of its API key."""

    def snapshot(self) -> dict[str, Any]:
        """Return the response object as of now."""

    def discard(self) -> None:
        """Stop generating, and store nothing."""

    def cancel(self) -> dict[str, Any]:
        """Stop generating, and return the response as it is."""


class Running:
    """(Not an attrs class: Litestar would inspect it.)"""

    def __init__(self) -> None:
        self._responses: dict[str, RunningResponse] = {}

    def add(self, response: RunningResponse) -> None:
        self._responses[response.id] = response

    def remove(self, response: RunningResponse) -> None:
        self._responses.pop(response.id, None)

    def find(self, owner: str, id: str) -> RunningResponse | None:
        """Return a response that its owner started."""
        response = self._responses.get(id)
        return response if response is not None and response.owner == owner else None

    def of_id(self, id: str) -> RunningResponse | None:
        """Return a response, whoever started it."""
        return self._responses.get(id)

    def in_background(self) -> list[RunningResponse]:
        """Return those that are stored before they have ended."""
        return [each for each in self._responses.values() if each.is_background]
