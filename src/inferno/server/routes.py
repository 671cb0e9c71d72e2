"""Routes other than generation: models, health, metrics, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import MediaType, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

import inferno
from inferno.errors import RequestError
from inferno.server.anthropic import models as anthropic
from inferno.server.errors import RETRY_AFTER
from inferno.server.model import ServedModel
from inferno.server.models import Models
from inferno.server.openai.logprobs import token_text
from inferno.server.parsing import CattrsDTO, Parsed
from inferno.server.schema import ERROR_RESPONSES, DetokenizeRequest, TokenizeRequest


@get("/v1/models", sync_to_thread=False)
def list_models(request: Request[Any, Any, Any], models: NamedDependency[Models]) -> dict[str, Any]:
    """List the served models under each of their names. With the header anthropic-version, in
    Anthropic's format."""
    cards = [_card(model, name) for model in models.served for name in model.names]
    if anthropic.VERSION_HEADER in request.headers:
        return anthropic.page(cards)
    return {"object": "list", "data": cards}


@get("/v1/models/{name:path}", sync_to_thread=False)
def get_model(
    name: FromPath[str], request: Request[Any, Any, Any], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Describe a served model under one of its names, which may have slashes."""
    wanted = name.removeprefix("/")
    wanted = wanted if f"/{wanted}" not in models.names else f"/{wanted}"
    found = _card(models.named(wanted), wanted)
    return anthropic.card(found) if anthropic.VERSION_HEADER in request.headers else found


@get(["/health", "/ping"], sync_to_thread=False)
def health(models: NamedDependency[Models]) -> Response[Any]:
    """Report 200 while requests can be served, else 503: the engine is restarting, or the server is
    shutting down."""
    pipeline = models.named(None).pipeline
    stopping = pipeline.limiter.draining
    state = "shutting down" if stopping else "ok" if pipeline.llm.alive else "restarting"
    if state == "ok":
        return Response({"status": state}, media_type="application/json")
    headers = {"Retry-After": str(RETRY_AFTER)}
    return Response(
        {"status": state}, status_code=503, headers=headers, media_type="application/json"
    )


@get("/version", sync_to_thread=False)
def version() -> dict[str, str]:
    """Report inferno's version."""
    return {"version": inferno.__version__}


@get("/metrics", media_type=MediaType.TEXT, sync_to_thread=False)
def metrics(models: NamedDependency[Models]) -> Response[bytes]:
    """Export metrics in Prometheus' exposition format."""
    return Response(
        models.named(None).pipeline.metrics.text(), media_type="text/plain; version=0.0.4"
    )


@post(
    "/tokenize",
    status_code=200,
    dto=CattrsDTO[TokenizeRequest],
    return_dto=None,
    responses=ERROR_RESPONSES,
)
async def tokenize(
    data: JSONBody[Parsed[TokenizeRequest]], models: NamedDependency[Models]
) -> Response[Any]:
    """Tokenize a string or messages, as in vLLM (`prompt`, `messages`) and llama.cpp
    (`content`)."""
    body = data.body
    model = await models.find(body.model)
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError(
            "tokenize needs exactly one input",
            "Send one of prompt, content and messages.",
            param="prompt",
        )
    tokenizer, ignored = model.needed_tokenizer(), data.ignored
    ids: Sequence[int]
    if body.messages is not None:
        prompt = await model.encode_chat(body, body.tools or [])
        ids, ignored = prompt.token_ids, (*ignored, *prompt.ignored)
    elif body.content is not None:
        special = body.add_special_tokens if body.add_special is None else body.add_special
        ids = tokenizer.encode(body.content, add_special_tokens=bool(special))
    else:
        special = body.add_special_tokens is not False
        ids = tokenizer.encode(body.prompt or "", add_special_tokens=special)
    tokens: Any = ids
    if body.with_pieces:
        tokens = [{"id": i, "piece": token_text(tokenizer, i)} for i in ids]
    answer = {
        "tokens": tokens,
        "count": len(ids),
        "max_model_len": model.preprocessor.max_model_len,
    }
    if body.return_token_strs:
        answer["token_strs"] = [token_text(tokenizer, i) for i in ids]
    return _answer(answer, ignored)


@post(
    "/detokenize",
    status_code=200,
    dto=CattrsDTO[DetokenizeRequest],
    return_dto=None,
    responses=ERROR_RESPONSES,
)
async def detokenize(
    data: JSONBody[Parsed[DetokenizeRequest]], models: NamedDependency[Models]
) -> Response[Any]:
    """Decode token ids, under vLLM's and llama.cpp's names for the field."""
    model = await models.find(data.body.model)
    text = model.needed_tokenizer().decode(data.body.tokens, skip_special_tokens=False)
    return _answer({"prompt": text, "content": text}, data.ignored)


def _card(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": model.name(name),
        "object": "model",
        "created": model.created,
        "owned_by": "inferno",
        "root": model.llm.model_id,
        "max_model_len": model.preprocessor.max_model_len,
    }


def _answer(body: dict[str, Any], ignored: Sequence[str]) -> Response[Any]:
    if ignored:
        body = {**body, "x_inferno": {"ignored": ignored}}
    return Response(body, media_type="application/json")


HANDLERS = (list_models, get_model, health, version, metrics, tokenize, detokenize)
BODIES: tuple[type[Any], ...] = (TokenizeRequest, DetokenizeRequest)
