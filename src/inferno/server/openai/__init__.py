"""OpenAI's endpoints for conversations and text."""

from __future__ import annotations

from typing import Any

from inferno.server.fields.schema import ChatRequest, CompletionRequest
from inferno.server.openai.chat import chat_completions
from inferno.server.openai.completions import completions

HANDLERS = (chat_completions, completions)
BODIES: tuple[type[Any], ...] = (ChatRequest, CompletionRequest)
