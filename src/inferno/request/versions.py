"""Which version of the weights computed an answer."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from inferno.request.requests import EngineOutput


@define(eq=False)
class Versions:
    """The first output of each request that a version of the weights computes carries it."""

    _told: set[str] = field(factory=set)
    """Requests whose outputs have it."""

    def note(self, outputs: Iterable[EngineOutput], version: str) -> None:
        """Write the version into the first outputs."""
        told = self._told
        for output in outputs:
            if output.request_id not in told:
                output.weight_version = version
                told.add(output.request_id)
            if output.finish is not None:
                told.discard(output.request_id)

    def forget(self, request_id: str) -> None:
        self._told.discard(request_id)
