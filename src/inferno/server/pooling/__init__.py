"""Embeddings, reranking and scores: endpoints that read prompts and generate nothing."""

from __future__ import annotations

from typing import Any

from inferno.server.pooling.embeddings import embeddings
from inferno.server.pooling.rerank import rerank
from inferno.server.pooling.schema import EmbeddingRequest, RerankRequest, ScoreRequest
from inferno.server.pooling.score import score

HANDLERS = (embeddings, rerank, score)
BODIES: tuple[type[Any], ...] = (EmbeddingRequest, RerankRequest, ScoreRequest)
