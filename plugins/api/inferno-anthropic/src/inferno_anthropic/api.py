"""Every endpoint of Anthropic's API."""

from __future__ import annotations

from inferno.server.api import Api, ModelCards
from inferno_anthropic import messages, models
from inferno_anthropic.errors import formatted
from inferno_anthropic.schema import CountTokensRequest, MessagesRequest

API = Api(
    handlers=(messages.create_message, messages.count_tokens),
    bodies=(MessagesRequest, CountTokensRequest),
    error=formatted,
    request_id_header="request-id",
    model_cards=ModelCards(header="anthropic-version", card=models.card, page=models.page),
)
