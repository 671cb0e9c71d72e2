"""Ollama's API, as editors use it: chat, generate, embeddings, and what describes models."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Endpoints


@hookimpl
def inferno_endpoints() -> list[Endpoints]:
    return [Endpoints(name="ollama", paths=("/api/",), api="inferno_ollama.api:API")]
