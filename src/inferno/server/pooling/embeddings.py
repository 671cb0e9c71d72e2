"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any, cast, get_args

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import RequestError
from inferno.requests import Pooling
from inferno.sampling_params import SamplingParams
from inferno.server.errors import unsupported
from inferno.server.model import ServedModel, in_time
from inferno.server.models import Models
from inferno.server.parsing import Parsed, post_body
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
    pooling = check_embedding(model, data.body.pooling, data.body.dimensions)
    if data.body.encoding_format not in (None, "float", "base64"):
        raise RequestError(
            f"invalid encoding_format {data.body.encoding_format[:40]!r}",
            "Use float or base64.",
            param="encoding_format",
        )
    prompts = await _prompts(data.body, model)
    shape = EmbeddingsShape(model, data.body, pooling, len(prompts))
    ready = prepared(data, model, prompts, params=ONE_TOKEN, pooling=pooling)
    with blaming("input"):
        return await model.pipeline.respond(ready, shape, request.receive)


def check_embedding(model: ServedModel, pooling: str | None, dimensions: int | None) -> Pooling:
    """Return the pooling. Raises RequestError if the model cannot embed like this."""
    config = model.preprocessor.pooling
    if config.unsupported and pooling is None:
        raise RequestError(
            f"this model's embeddings are not supported: {config.unsupported}",
            "Name a pooling (last, first, mean, max) if you want one of the decoder's states.",
            param="model",
        )
    if pooling is not None and pooling not in get_args(Pooling):
        raise RequestError(
            f"invalid pooling {pooling[:40]!r}",
            f"Use {', '.join(get_args(Pooling))}.",
            param="pooling",
        )
    if dimensions is not None and dimensions != config.size:
        _check_dimensions(config.dimensions, dimensions, config.size)
    return config.pooling if pooling is None else cast(Pooling, pooling)


def _check_dimensions(known: tuple[int, ...] | None, wanted: int, size: int | None) -> None:
    if known is None:
        raise unsupported(
            "dimensions",
            "This model was not trained for shorter vectors (config.json has no is_matryoshka and "
            "no matryoshka_dimensions): leave it out, or cut the vectors yourself.",
        )
    if known and wanted not in known:
        raise RequestError(
            f"dimensions is {wanted}",
            f"Use one of {', '.join(map(str, known))}.",
            param="dimensions",
        )
    if wanted < 1 or (size is not None and wanted > size):
        raise RequestError(
            f"dimensions is {wanted}", f"Use 1 to {size or 'its size'}.", param="dimensions"
        )


async def _prompts(body: EmbeddingRequest, model: ServedModel) -> list[tuple[int, ...]]:
    raw: Any = body.input
    inputs = [raw] if isinstance(raw, str) or isinstance(raw[0], int) else raw
    limit = body.truncate_prompt_tokens
    if limit is not None and (limit < -1 or limit == 0):
        raise RequestError(
            f"truncate_prompt_tokens is {limit}",
            "Use a positive number, or -1.",
            param="truncate_prompt_tokens",
        )
    longest = model.preprocessor.max_model_len - 1
    return await encode_inputs(
        model,
        inputs,
        special=body.add_special_tokens is not False,
        limit=longest if limit == -1 else limit,
    )


async def encode_inputs(
    model: ServedModel,
    inputs: Sequence[str | Sequence[int]],
    *,
    special: bool = True,
    limit: int | None = None,
    param: str = "input",
) -> list[tuple[int, ...]]:
    """Return the token ids of each input, cut to `limit`. Raises RequestError for an empty one, or
    for none or too many."""
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
        tokenizer = model.needed_tokenizer(param)
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
    return await in_time(work, sum(map(len, inputs)))


class EmbeddingsShape(WholeShape[Pooled]):
    """OpenAI's answer."""

    def __init__(
        self, model: ServedModel, body: EmbeddingRequest, pooling: Pooling, count: int
    ) -> None:
        self._model, self._body, self._pooling = model, body, pooling
        self._normalize = body.normalize
        if body.normalize is None:
            self._normalize = model.preprocessor.pooling.normalize
        self.choices = [Pooled(i) for i in range(count)]

    def body(self) -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": choice.index, "embedding": self._encoded(choice)}
            for choice in self.choices
        ]
        return {
            "object": "list",
            "data": data,
            "model": self.generation.prepared.model,
            "usage": self.usage(),
        }

    def notes(self) -> dict[str, Any]:
        return {"pooling": self._pooling, "normalized": self._normalize}

    def _encoded(self, choice: Pooled) -> list[float] | str:
        config = self._model.preprocessor.pooling
        vector = config.finish(choice.vector, normalize=self._normalize, size=self._body.dimensions)
        if self._body.encoding_format == "base64":
            return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        return vector
