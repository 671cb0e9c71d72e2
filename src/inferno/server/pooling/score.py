"""POST /v1/score, as in vLLM."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.llm.pairs import paired
from inferno.server.hosting.models import Models
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.pooling.pairs import PairsShape, prepare_pairs
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
    pairs = paired(data.body.text_1, data.body.text_2)
    ready, scoring = await prepare_pairs(data, model, pairs, instruction=data.body.instruction)
    with blaming("text_2"):
        return await model.pipeline.respond(ready, ScoreShape(scoring), request.receive)


class ScoreShape(PairsShape):
    def body(self) -> dict[str, Any]:
        data = [
            {"index": i, "object": "score", "score": score} for i, score in enumerate(self.scores())
        ]
        return {
            "id": f"score-{self.generation.id}",
            "object": "list",
            "created": self.generation.created,
            "model": self.generation.prepared.model,
            "data": data,
            "usage": self.usage(),
        }
