"""Every endpoint of Ollama's API."""

from __future__ import annotations

from inferno.server.api import Api
from inferno_ollama.embedding import embed, embeddings
from inferno_ollama.errors import formatted
from inferno_ollama.generating import chat, generate
from inferno_ollama.listing import change, processes, pull, remove, show, tags, version
from inferno_ollama.schema import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaNameRequest,
    OllamaPullRequest,
    Options,
)

API = Api(
    handlers=(
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
    ),
    bodies=(
        OllamaChatRequest,
        Options,
        OllamaGenerateRequest,
        OllamaEmbedRequest,
        OllamaEmbeddingsRequest,
        OllamaNameRequest,
        OllamaPullRequest,
    ),
    error=formatted,
    any_content_type=True,
    stream_type="application/x-ndjson",
)
