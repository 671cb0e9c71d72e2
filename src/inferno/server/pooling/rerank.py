"""POST /v1/rerank, also under the paths of Jina's and Cohere's clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import RequestError
from inferno.llm.pairs import MAX_PAIRS, PairScoring
from inferno.server.hosting.models import Models
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.pooling.pairs import PairsShape, prepare_pairs
from inferno.server.pooling.schema import RerankRequest
from inferno.server.pooling.shape import blaming


@post_body(RerankRequest, "/v1/rerank", "/rerank", "/v2/rerank")
async def rerank(
    data: JSONBody[Parsed[RerankRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Order documents by their relevance for a query."""
    body = data.body
    model = await models.find(body.model)
    _check(body)
    texts = [_text(i, document) for i, document in enumerate(body.documents)]
    ready, scoring = await prepare_pairs(
        data,
        model,
        [(body.query, text) for text in texts],
        instruction=body.instruction,
        max_tokens_per_doc=body.max_tokens_per_doc,
        asymmetric=True,
    )
    shape = RerankShape(scoring, body, texts)
    with blaming("documents"):
        return await model.pipeline.respond(ready, shape, request.receive)


def _check(body: RerankRequest) -> None:
    if not body.query:
        raise RequestError("query is empty", "Send a string.", param="query")
    if not 0 < len(body.documents) <= MAX_PAIRS:
        raise RequestError(
            f"there are {len(body.documents)} documents",
            f"Send 1 to {MAX_PAIRS}.",
            param="documents",
        )
    for name in ("top_n", "max_tokens_per_doc"):
        if (value := getattr(body, name)) is not None and value < 1:
            raise RequestError(f"{name} is {value}", "It must be at least 1.", param=name)


def _text(i: int, document: str | dict[str, Any]) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str) or not text:
        raise RequestError(
            f"documents[{i}] has no text",
            'Send a string, or {"text": string}.',
            param=f"documents[{i}]",
        )
    return text


class RerankShape(PairsShape):
    """The answer of Jina's API, which Cohere's clients read too."""

    def __init__(self, scoring: PairScoring, body: RerankRequest, texts: Sequence[str]) -> None:
        super().__init__(scoring)
        self._body, self._texts = body, texts

    def body(self) -> dict[str, Any]:
        scores = self.scores()
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: self._body.top_n]
        results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in best]
        if self._body.return_documents is not False:
            for result in results:
                result["document"] = {"text": self._texts[result["index"]]}
        return {
            "id": f"rerank-{self.generation.id}",
            "object": "list",
            "model": self.generation.prepared.model,
            "results": results,
            "usage": self.usage(),
        }
