"""Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from inferno.server.anthropic import messages
from inferno.server.anthropic.schema import CountTokensRequest, MessagesRequest

HANDLERS = (messages.create_message, messages.count_tokens)
BODIES: tuple[type[Any], ...] = (MessagesRequest, CountTokensRequest)
