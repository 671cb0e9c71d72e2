"""Reading a request's body: its sampling parameters are known, with their types."""

from __future__ import annotations

from inferno.server.fields.schema import ChatRequest


def read(data: ChatRequest) -> float | None:
    text: str = data.temperature  # error: assignment
    _ = data.temprature  # error: attr-defined
    return data.temperature if text else data.top_p
