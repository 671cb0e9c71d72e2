"""Ollama's API is one like any plugin's."""

from __future__ import annotations

from inferno.testing import EndpointsTests


class TestOllama(EndpointsTests):
    endpoints = "ollama"
    smallest = {
        "/api/chat": {"model": "m"},
        "/api/chat#options": {},
        "/api/generate": {"model": "m"},
        "/api/embed": {"model": "m", "input": "hi"},
        "/api/embeddings": {"model": "m", "prompt": "hi"},
        "/api/show": {"model": "m"},
        "/api/pull": {"model": "m"},
    }
