"""GET /v1/models in Anthropic's format, for clients that send its version header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def card(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Make Anthropic's model object from OpenAI's."""
    return {
        "type": "model",
        "id": shown["id"],
        "display_name": shown["id"],
        "created_at": datetime.fromtimestamp(shown["created"], UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": shown.get("max_model_len"),
        "max_tokens": shown.get("max_model_len"),
    }


def page(cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make Anthropic's list from OpenAI's model objects."""
    data = [card(each) for each in cards]
    return {
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": False,
    }
