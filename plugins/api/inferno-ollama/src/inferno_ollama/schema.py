"""The bodies of Ollama's API."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen

from inferno.server.api import Field
from inferno_ollama import support


@frozen(kw_only=True)
class Options:
    """`options` of a body."""

    path: ClassVar[str] = "/api/chat#options"
    rows: ClassVar[tuple[Field, ...]] = support.OPTIONS

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


@frozen(kw_only=True)
class Generating:
    """What chat and generate have in common."""

    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


@frozen(kw_only=True)
class OllamaChatRequest(Generating):
    """The body of POST /api/chat."""

    path: ClassVar[str] = "/api/chat"
    rows: ClassVar[tuple[Field, ...]] = support.CHAT
    message_fields: ClassVar[tuple[str, ...]] = ("images", "thinking", "tool_name")
    """Of a message, besides those of a chat request's."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


@frozen(kw_only=True)
class OllamaGenerateRequest(Generating):
    """The body of POST /api/generate."""

    path: ClassVar[str] = "/api/generate"
    rows: ClassVar[tuple[Field, ...]] = support.GENERATE

    prompt: str | None = None
    images: list[str] | None = None
    system: str | None = None
    raw: bool | None = None


@frozen(kw_only=True)
class OllamaEmbedRequest:
    """The body of POST /api/embed."""

    path: ClassVar[str] = "/api/embed"
    rows: ClassVar[tuple[Field, ...]] = support.EMBED

    model: str
    input: str | list[str]
    truncate: bool | None = None
    dimensions: int | None = None


@frozen(kw_only=True)
class OllamaEmbeddingsRequest:
    """The body of POST /api/embeddings."""

    path: ClassVar[str] = "/api/embeddings"
    rows: ClassVar[tuple[Field, ...]] = support.EMBEDDINGS

    model: str
    prompt: str


@frozen(kw_only=True)
class OllamaNameRequest:
    """The body of POST /api/show."""

    path: ClassVar[str] = "/api/show"
    rows: ClassVar[tuple[Field, ...]] = support.SHOW

    model: str | None = None
    name: str | None = None


@frozen(kw_only=True)
class OllamaPullRequest:
    """The body of POST /api/pull."""

    path: ClassVar[str] = "/api/pull"
    rows: ClassVar[tuple[Field, ...]] = support.PULL

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
