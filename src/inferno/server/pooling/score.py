"""POST /v1/score, as in vLLM."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import RequestError
from inferno.server.hosting.models import Models
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.pooling.pairs import Pair, PairsShape, prepare_pairs
from inferno.server.pooling.rerank import MAX_DOCUMENTS
from inferno.server.pooling.schema import ScoreRequest
from inferno.server.pooling.shape import blaming


@post_body(ScoreRequest, "/v1/score", "/score")
async def score(
    data: JSONBody[Parsed[ScoreRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Score pairs of strings: one with one, one with each of many, or many with as many."""
    model = await models.find(data.body.model)
    pairs = _pairs(data.body)
    ready, scores = await prepare_pairs(data, model, pairs, instruction=data.body.instruction)
    with blaming("text_2"):
        return await model.pipeline.respond(ready, ScoreShape(scores), request.receive)


def _pairs(body: ScoreRequest) -> list[Pair]:
    ones, twos = ([text] if isinstance(text, str) else text for text in (body.text_1, body.text_2))
    if len(ones) == 1:
        ones = ones * len(twos)
    if len(ones) != len(twos) or not 0 < len(ones) <= MAX_DOCUMENTS:
        raise RequestError(
            f"text_1 has {len(ones)} strings, text_2 {len(twos)}",
            f"Send as many of each, 1 to {MAX_DOCUMENTS}, or one text_1.",
            param="text_2",
        )
    for name, texts in (("text_1", ones), ("text_2", twos)):
        if not all(texts):
            raise RequestError(f"{name} has an empty string", "Leave it out.", param=name)
    return list(zip(ones, twos, strict=True))


class ScoreShape(PairsShape):
    def body(self) -> dict[str, Any]:
        data = [
            {"index": i, "object": "score", "score": score}
            for i, score in enumerate(self.pairs.scores())
        ]
        return {
            "id": f"score-{self.generation.id}",
            "object": "list",
            "created": self.generation.created,
            "model": self.generation.prepared.model,
            "data": data,
            "usage": self.usage(),
        }
