"""Anthropic's Messages API."""

from __future__ import annotations

from inferno.server.anthropic import messages, models
from inferno.server.anthropic.errors import formatted
from inferno.server.anthropic.schema import CountTokensRequest, MessagesRequest
from inferno.server.http.apis import Api, ModelCards

API = Api(
    handlers=(messages.create_message, messages.count_tokens),
    bodies=(MessagesRequest, CountTokensRequest),
    error=formatted,
    request_id_header="request-id",
    model_cards=ModelCards(header="anthropic-version", card=models.card, page=models.page),
)
