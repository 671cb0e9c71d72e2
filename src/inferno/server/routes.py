"""Routes other than generation: models, health, metrics, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import MediaType, Request, Response, get
from litestar.datastructures import State as AppState
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

import inferno
from inferno.errors import RequestError
from inferno.llm.defaults import named_values
from inferno.server.fields.schema import DetokenizeRequest, TokenizeRequest
from inferno.server.hosting.describe import capabilities, details
from inferno.server.hosting.hosted_model import HostedModel, LoadState
from inferno.server.hosting.models import Models
from inferno.server.hosting.served_model import in_time
from inferno.server.http.apis import Apis, ModelCards
from inferno.server.http.errors import RETRY_AFTER
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.observe.metrics import Metrics
from inferno.server.observe.record import record_of
from inferno.server.openai.logprobs import token_text

_MIN_CHARACTERS = 2**18
"""Strings and lists up to this length are (de)tokenized even if the context is shorter."""


@get("/v1/models", sync_to_thread=False)
def list_models(request: Request[Any, Any, Any], models: NamedDependency[Models]) -> dict[str, Any]:
    """List the models that the key may use, loaded or not, under each of their names. In the format
    of another API for its clients, if it is installed: Anthropic's send anthropic-version."""
    usable = usable_models(request, models)
    cards = [
        _card(hosted, name) for hosted in usable for name in (*hosted.spec.names, *hosted.adapters)
    ]
    if other := _other_cards(request):
        return other.page(cards)
    return {"object": "list", "data": cards}


@get("/v1/models/{name:path}", sync_to_thread=False)
def get_model(
    name: FromPath[str], request: Request[Any, Any, Any], models: NamedDependency[Models]
) -> dict[str, Any]:
    """Describe a model under one of its names, which may have slashes: what it can do, and the
    support of each field."""
    wanted = name.removeprefix("/")
    wanted = wanted if f"/{wanted}" not in models.names else f"/{wanted}"
    hosted, record = models.get(wanted), record_of(request.scope)
    if record is not None and record.key is not None:
        record.key.check_model(hosted.spec.names)
    card = _card(hosted, wanted)
    if other := _other_cards(request):
        return other.card(card)
    if hosted.served is not None:
        card["x_inferno"] = details(hosted.served, request.app.state.fields)
    return card


@get(["/health", "/ping", "/readyz"], sync_to_thread=False)
def health(models: NamedDependency[Models]) -> Response[Any]:
    """Report 200 while requests can be served, else 503: the only model's engine is restarting, or
    stalled in a step, models are loaded at the start, or the server is shutting down. Of several
    engines it says how each is, `degraded` is a server that has fewer than it should; and of each
    instance that computes prompts for it, whether it is connected."""
    state = _health(models)
    content: dict[str, Any] = {"status": state}
    if len(models.hosted) > 1:
        content["models"] = {hosted.name: hosted.status for hosted in models.hosted}
    if engines := {hosted.name: hosted.engines for hosted in models.hosted if hosted.engines}:
        content["engines"] = engines
        if state == "ok" and any(s != "ok" for each in engines.values() for s in each.values()):
            content["status"] = "degraded"
    if prefill := {hosted.name: hosted.prefill for hosted in models.hosted if hosted.prefill}:
        content["prefill"] = prefill
    if state == "ok":
        return Response(content, media_type="application/json")
    headers = {"Retry-After": str(RETRY_AFTER)}
    return Response(content, status_code=503, headers=headers, media_type="application/json")


@get("/livez", sync_to_thread=False)
def live() -> dict[str, str]:
    """Report 200 as long as the server answers at all: it restarts its engines itself."""
    return {"status": "ok"}


@get("/startupz", sync_to_thread=False)
def started(models: NamedDependency[Models]) -> Response[Any]:
    """Report 200 once the models that are loaded at the start are loaded, else 503."""
    state = "loading" if models.starting else "ok"
    return Response(
        {"status": state},
        status_code=503 if models.starting else 200,
        media_type="application/json",
    )


@get("/version", sync_to_thread=False)
def version() -> dict[str, str]:
    """Report inferno's version."""
    return {"version": inferno.__version__}


@get("/metrics", media_type=MediaType.TEXT, sync_to_thread=False)
def metrics(request: Request[Any, Any, Any], state: AppState) -> Response[bytes]:
    """Export metrics in Prometheus' exposition format. A key sees its own usage, one that may
    administrate that of all keys, and so does everyone where no key is needed."""
    exported: Metrics = state.metrics
    record = record_of(request.scope)
    text = exported.text(None if record is None else record.key)
    return Response(text, media_type="text/plain; version=0.0.4")


@post_body(TokenizeRequest)
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
    if body.messages is not None:
        prompt = await model.encode_chat(body, body.tools or [], _MIN_CHARACTERS)
        ids: Sequence[int] = prompt.token_ids
        ignored = (*ignored, *prompt.ignored)
    else:
        text, special = body.prompt or "", body.add_special_tokens is not False
        if body.content is not None:
            text, add_special = body.content, body.add_special
            special = bool(body.add_special_tokens if add_special is None else add_special)
        model.preprocessor.check_characters(len(text), given[0], _MIN_CHARACTERS)
        ids = await in_time(
            lambda: tokenizer.encode(text, add_special_tokens=special), len(text), tokenizer
        )

    def write() -> dict[str, Any]:
        pieces = [token_text(tokenizer, i) for i in ids] if wants_pieces else []
        tokens: Any = ids
        if body.with_pieces:
            tokens = [{"id": i, "piece": piece} for i, piece in zip(ids, pieces, strict=True)]
        longest = model.preprocessor.max_model_len
        answer = {"tokens": tokens, "count": len(ids), "max_model_len": longest}
        return answer | ({"token_strs": pieces} if body.return_token_strs else {})

    wants_pieces = body.with_pieces or body.return_token_strs
    return _answer(await in_time(write, len(ids) if wants_pieces else 0), ignored)


@post_body(DetokenizeRequest)
async def detokenize(
    data: JSONBody[Parsed[DetokenizeRequest]], models: NamedDependency[Models]
) -> Response[Any]:
    """Decode token ids, under vLLM's and llama.cpp's names for the field."""
    model = await models.find(data.body.model)
    tokens, tokenizer = data.body.tokens, model.needed_tokenizer()
    most = max(_MIN_CHARACTERS, model.preprocessor.max_model_len)
    if len(tokens) > most:
        raise RequestError(
            f"there are {len(tokens)} tokens", f"Send at most {most}.", param="tokens"
        )
    model.preprocessor.check_ids("tokens", tokens)
    text = await in_time(lambda: tokenizer.decode(tokens, skip_special_tokens=False), len(tokens))
    return _answer({"prompt": text, "content": text}, data.ignored)


def _health(models: Models) -> str:
    if models.draining or models.hosted[0].limiter.draining:
        return "shutting down"
    if models.starting:
        return "loading"
    only = models.hosted[0].status if len(models.hosted) == 1 else ""
    return only if only in ("restarting", "stalled") else "ok"


def usable_models(request: Request[Any, Any, Any], models: Models) -> list[HostedModel]:
    """Return the models that the request's key may use."""
    record = record_of(request.scope)
    key = record.key if record is not None else None
    return [hosted for hosted in models.hosted if key is None or key.may_use(hosted.spec.names)]


def _other_cards(request: Request[Any, Any, Any]) -> ModelCards | None:
    apis: Apis = request.app.state.apis
    return apis.model_cards(request.headers)


def _card(hosted: HostedModel, name: str) -> dict[str, Any]:
    card = {
        "id": name,
        "object": "model",
        "created": hosted.created,
        "owned_by": "inferno",
        "root": hosted.spec.ref or hosted.name,
        "status": hosted.status,
    }
    if (use := hosted.adapters.get(name)) is not None and name not in hosted.spec.names:
        card |= {"root": use.ref, "parent": hosted.name}
    if hosted.served is not None:
        preprocessor = hosted.served.preprocessor
        card["max_model_len"] = preprocessor.max_model_len
        card["weight_version"] = hosted.served.llm.weight_version
        card["interactive_sampling"] = named_values(preprocessor.interactive_params)
        card["capabilities"] = capabilities(hosted.served)
    if hosted.state is LoadState.FAILED and hosted.error is not None:
        card["error"] = hosted.error.cause
    return card


def _answer(body: dict[str, Any], ignored: Sequence[str]) -> Response[Any]:
    if ignored:
        body = {**body, "x_inferno": {"ignored": ignored}}
    return Response(body, media_type="application/json")


HANDLERS = (list_models, get_model, health, live, started, version, metrics, tokenize, detokenize)
BODIES: tuple[type[Any], ...] = (TokenizeRequest, DetokenizeRequest)
