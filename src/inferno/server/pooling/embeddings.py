"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import RequestError
from inferno.llm.pooling import Recipe
from inferno.request.sampling_params import SamplingParams
from inferno.server.hosting.models import Models
from inferno.server.hosting.served_model import ServedModel, in_time
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.pooling.schema import EmbeddingRequest
from inferno.server.pooling.shape import Pooled, WholeShape, blaming, prepared

ONE_TOKEN = SamplingParams(max_tokens=1)
MAX_INPUTS = 2048
"""OpenAI's limit of inputs in one request."""


@post_body(EmbeddingRequest)
async def embeddings(
    data: JSONBody[Parsed[EmbeddingRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Make an embedding of each input."""
    model = await models.find(data.body.model)
    body = data.body
    recipe = model.preprocessor.pooling.recipe(
        pooling=body.pooling,
        normalize=body.normalize,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    if body.encoding_format not in (None, "float", "base64"):
        raise RequestError(
            f"invalid encoding_format {body.encoding_format[:40]!r}",
            "Use float or base64.",
            param="encoding_format",
        )
    prompts = await _prompts(body, model, recipe)
    shape = EmbeddingsShape(recipe, body.encoding_format, len(prompts))
    ready = prepared(data, model, prompts, params=ONE_TOKEN, pooling=recipe.pooling)
    with blaming("input"):
        return await model.pipeline.respond(ready, shape, request.receive)


async def _prompts(
    body: EmbeddingRequest, model: ServedModel, recipe: Recipe
) -> list[tuple[int, ...]]:
    raw: Any = body.input
    inputs = [raw] if isinstance(raw, str) or isinstance(raw[0], int) else raw
    limit = body.truncate_prompt_tokens
    if limit is not None and (limit < -1 or limit == 0):
        raise RequestError(
            f"truncate_prompt_tokens is {limit}",
            "Use a positive number, or -1.",
            param="truncate_prompt_tokens",
        )
    longest = model.preprocessor.max_model_len
    return await encode_inputs(
        model,
        inputs,
        before=recipe.prompt,
        special=body.add_special_tokens is not False,
        limit=longest if limit == -1 else limit,
    )


async def encode_inputs(
    model: ServedModel,
    inputs: Sequence[str | Sequence[int]],
    *,
    before: str = "",
    special: bool = True,
    limit: int | None = None,
    param: str = "input",
) -> list[tuple[int, ...]]:
    """Return the token ids of each input, cut to `limit`; `before` is written before strings.
    Raises RequestError for an empty one, or for none or too many."""
    if not inputs:
        raise RequestError(f"{param} is empty", "Send at least one string.", param=param)
    if len(inputs) > MAX_INPUTS:
        raise RequestError(
            f"{param} has {len(inputs)} entries",
            f"Send at most {MAX_INPUTS} in one request.",
            param=param,
        )

    def encode_one(i: int, text: str | Sequence[int]) -> tuple[int, ...]:
        if not text:
            name = f"{param}[{i}]" if len(inputs) > 1 else param
            raise RequestError(f"{name} is empty", "Send at least one token.", param=name)
        if not isinstance(text, str):
            return tuple(text if limit is None else text[:limit])
        tokenizer, text = model.needed_tokenizer(param), before + text
        if limit is None:
            model.preprocessor.check_characters(len(text), param)
        else:  # no token is longer: the rest would be cut off
            text = text[: (limit + 1) * tokenizer.longest_token]
        ids = tokenizer.encode(text, add_special_tokens=special)
        if limit is not None and len(ids) > limit:
            # The end token that a tokenizer adds is the one whose state is the embedding.
            end = ids[-1:] if special and tokenizer.is_special(ids[-1]) else []
            ids = ids[: limit - len(end)] + end
        return tuple(ids)

    work = lambda: [encode_one(i, text) for i, text in enumerate(inputs)]  # noqa: E731
    return await in_time(work, sum(map(len, inputs)), model.tokenizer)


class EmbeddingsShape(WholeShape[Pooled]):
    """OpenAI's answer."""

    def __init__(self, recipe: Recipe, encoding: str | None, count: int) -> None:
        self._recipe, self._encoding = recipe, encoding
        self.choices = [Pooled(i) for i in range(count)]

    def body(self) -> dict[str, Any]:
        vectors = self._recipe.finish([choice.vector for choice in self.choices])
        data = [
            {"object": "embedding", "index": choice.index, "embedding": self._encoded(vector)}
            for choice, vector in zip(self.choices, vectors, strict=True)
        ]
        return {
            "object": "list",
            "data": data,
            "model": self.generation.prepared.model,
            "usage": self.usage(),
        }

    def notes(self) -> dict[str, Any]:
        return {"pooling": self._recipe.pooled_by, "normalized": self._recipe.normalize}

    def _encoded(self, vector: list[float]) -> list[float] | str:
        if self._encoding == "base64":
            return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        return vector
