"""Everything but generation: models, health, metrics, tokens."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

import inferno
from inferno.errors import RequestError
from inferno.server.chat import encode_chat
from inferno.server.errors import RETRY_AFTER
from inferno.server.logprobs import token_text
from inferno.server.parsing import CattrsDTO
from inferno.server.schema import ERROR_RESPONSES, DetokenizeRequest, TokenizeRequest
from inferno.server.service import Service


@get("/v1/models", sync_to_thread=False)
def list_models(service: NamedDependency[Service]) -> dict[str, Any]:
    """The served model, by every name it is served by."""
    return {"object": "list", "data": [_card(service, name) for name in service.names]}


@get("/v1/models/{model:path}", sync_to_thread=False)
def get_model(model: FromPath[str], service: NamedDependency[Service]) -> dict[str, Any]:
    """One name. Names may have slashes."""
    wanted = model.removeprefix("/")
    return _card(service, wanted if f"/{wanted}" not in service.names else f"/{wanted}")


@get(["/health", "/ping"], sync_to_thread=False)
def health(service: NamedDependency[Service]) -> Response[Any]:
    """200 while requests can be served, else 503: the engine is restarting, or the server
    stopping."""
    state = (
        "shutting down" if service.gate.draining else "ok" if service.llm.alive else "restarting"
    )
    if state == "ok":
        return Response({"status": state}, media_type="application/json")
    headers = {"Retry-After": str(RETRY_AFTER)}
    return Response(
        {"status": state}, status_code=503, headers=headers, media_type="application/json"
    )


@get("/version", sync_to_thread=False)
def version() -> dict[str, str]:
    """inferno's version."""
    return {"version": inferno.__version__}


@get("/metrics", sync_to_thread=False)
def metrics(service: NamedDependency[Service]) -> Response[bytes]:
    """Prometheus' exposition format."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


@post(
    "/tokenize",
    status_code=200,
    dto=CattrsDTO[TokenizeRequest],
    return_dto=None,
    responses=ERROR_RESPONSES,
)
async def tokenize(
    data: JSONBody[TokenizeRequest],
    request: Request[Any, Any, Any],
    service: NamedDependency[Service],
) -> Response[Any]:
    """A text's token ids, as vLLM (`prompt` or `messages`) and llama.cpp (`content`) answer."""
    service.model(data.model)
    given = [name for name in ("prompt", "content", "messages") if getattr(data, name) is not None]
    if len(given) != 1:
        raise RequestError(
            "tokenize needs one text", "Send one of prompt, content and messages.", param="prompt"
        )
    tokenizer = _tokenizer(service)
    if data.messages is not None:
        ids = (await encode_chat(service, data, data.tools or [], request.state.ignored))[1]
    elif data.content is not None:
        special = (
            data.add_special if data.add_special is not None else bool(data.add_special_tokens)
        )
        ids = tuple(tokenizer.encode(data.content, add_special_tokens=special))
    else:
        ids = tuple(
            tokenizer.encode(
                data.prompt or "", add_special_tokens=data.add_special_tokens is not False
            )
        )
    tokens: Any = ids
    if data.with_pieces:
        tokens = [{"id": i, "piece": token_text(tokenizer, i)} for i in ids]
    body = {"tokens": tokens, "count": len(ids), "max_model_len": service.llm.max_model_len}
    if data.return_token_strs:
        body["token_strs"] = [token_text(tokenizer, i) for i in ids]
    return Response(body | _ignored(request), media_type="application/json")


@post(
    "/detokenize",
    status_code=200,
    dto=CattrsDTO[DetokenizeRequest],
    return_dto=None,
    responses=ERROR_RESPONSES,
)
async def detokenize(
    data: JSONBody[DetokenizeRequest],
    request: Request[Any, Any, Any],
    service: NamedDependency[Service],
) -> Response[Any]:
    """The text of token ids, under vLLM's name for it and llama.cpp's."""
    service.model(data.model)
    text = _tokenizer(service).decode(data.tokens, skip_special_tokens=False)
    return Response(
        {"prompt": text, "content": text} | _ignored(request), media_type="application/json"
    )


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": service.model(name),
        "object": "model",
        "created": service.created,
        "owned_by": "inferno",
        "root": service.llm.model_id,
        "max_model_len": service.llm.max_model_len,
    }


def _tokenizer(service: Service) -> Any:
    if service.llm.tokenizer is None:
        raise RequestError("this model has no tokenizer", "Send token ids to /v1/completions.")
    return service.llm.tokenizer


def _ignored(request: Request[Any, Any, Any]) -> dict[str, Any]:
    ignored = request.state.ignored
    return {"x_inferno": {"ignored": ignored}} if ignored else {}
