"""Ollama's API, as editors use it: chat, generate, embeddings, and what describes models."""

from __future__ import annotations

from typing import Any

from inferno.server.ollama.embedding import embed, embeddings
from inferno.server.ollama.generating import chat, generate
from inferno.server.ollama.listing import (
    change,
    processes,
    pull,
    remove,
    show,
    tags,
    version,
)
from inferno.server.ollama.schema import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaNameRequest,
    OllamaPullRequest,
    Options,
)

HANDLERS = (
    chat,
    generate,
    embed,
    embeddings,
    show,
    tags,
    processes,
    version,
    pull,
    change,
    remove,
)
BODIES: tuple[type[Any], ...] = (
    OllamaChatRequest,
    Options,
    OllamaGenerateRequest,
    OllamaEmbedRequest,
    OllamaEmbeddingsRequest,
    OllamaNameRequest,
    OllamaPullRequest,
)
