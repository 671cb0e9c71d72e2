"""OpenAI's endpoints for conversations and text."""

from __future__ import annotations

from typing import Any

from inferno.server.openai.chat import chat_completions
from inferno.server.openai.completions import completions
from inferno.server.schema import ChatRequest, CompletionRequest

HANDLERS = (chat_completions, completions)
BODIES: tuple[type[Any], ...] = (ChatRequest, CompletionRequest)
