"""POST /api/embed and /api/embeddings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.server.api import (
    ONE_TOKEN,
    Models,
    Parsed,
    Pooled,
    Prepared,
    Recipe,
    ServedModel,
    WholeShape,
    blaming,
    encode_inputs,
    post_body,
)
from inferno_ollama import errors
from inferno_ollama.schema import OllamaEmbeddingsRequest, OllamaEmbedRequest
from inferno_ollama.translation import find


@post_body(OllamaEmbedRequest, responses=errors.RESPONSES)
async def embed(
    data: JSONBody[Parsed[OllamaEmbedRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Make an embedding of each input, as Ollama does: normalized."""
    body = data.body
    model = await find(models, body.model)
    inputs = [body.input] if isinstance(body.input, str) else body.input
    with blaming("input"):
        recipe = model.preprocessor.pooling.recipe(normalize=True, dimensions=body.dimensions)
        prepared = await _prepare(model, inputs, data.ignored, recipe, body.truncate)
        shape = _EmbedShape(recipe, body.model, len(inputs))
        return await model.pipeline.respond(prepared, shape, request.receive)


@post_body(OllamaEmbeddingsRequest, responses=errors.RESPONSES)
async def embeddings(
    data: JSONBody[Parsed[OllamaEmbeddingsRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Make an embedding of a prompt, as older versions of Ollama do."""
    model = await find(models, data.body.model)
    recipe = model.preprocessor.pooling.recipe()
    prepared = await _prepare(model, [data.body.prompt], data.ignored, recipe)
    return await model.pipeline.respond(prepared, _EmbeddingShape(recipe), request.receive)


async def _prepare(
    model: ServedModel,
    inputs: Sequence[str],
    ignored: tuple[str, ...],
    recipe: Recipe,
    truncate: bool | None = None,
) -> Prepared:
    limit = None if truncate is False else model.preprocessor.max_model_len
    prompts = await encode_inputs(model, inputs, before=recipe.prompt, limit=limit)
    return Prepared(
        model=model.names[0],
        prompts=prompts,
        params=ONE_TOKEN,
        pooling=recipe.pooling,
        ignored=ignored,
    )


class _EmbedShape(WholeShape[Pooled]):
    def __init__(self, recipe: Recipe, model: str, count: int) -> None:
        self._recipe, self._model = recipe, model
        self._started = time.monotonic()
        self.choices = [Pooled(i) for i in range(count)]

    def body(self) -> dict[str, Any]:
        return {
            "model": self._model,
            "embeddings": self._recipe.finish([choice.vector for choice in self.choices]),
            "total_duration": round((time.monotonic() - self._started) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": sum(map(len, self.generation.prepared.prompts)),
        }

    def notes(self) -> dict[str, Any]:
        return {"pooling": self._recipe.pooled_by}


class _EmbeddingShape(WholeShape[Pooled]):
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.choices = [Pooled(0)]

    def body(self) -> dict[str, Any]:
        [vector] = self._recipe.finish([self.choices[0].vector])
        return {"embedding": vector}

    def notes(self) -> dict[str, Any]:
        return {"pooling": self._recipe.pooled_by}
