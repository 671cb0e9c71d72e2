"""What Ollama's clients ask before they generate: which models there are, and what they can do."""

from __future__ import annotations

import hashlib
from typing import Any

from litestar import Request, Response, delete, get, route
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno import __version__
from inferno.errors import RequestError, UnsupportedError
from inferno.server.api import Description, Models, Parsed, ServedModel, post_body, usable_models
from inferno_ollama import errors
from inferno_ollama.schema import OllamaNameRequest, OllamaPullRequest
from inferno_ollama.shape import timestamp
from inferno_ollama.translation import find, plain_name

_CAPABILITIES = {
    "tools": "tools",
    "reasoning": "thinking",
    "embeddings": "embedding",
    "vision": "vision",
}
_DENSE = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_NEVER = "2318-01-01T00:00:00Z"
"""When a model without `keep_alive` is unloaded, as Ollama reports it."""


@get("/api/version", sync_to_thread=False, responses=errors.RESPONSES)
def version() -> dict[str, str]:
    """Report inferno's version."""
    return {"version": __version__}


@get("/api/tags", sync_to_thread=False, responses=errors.RESPONSES)
def tags(request: Request[Any, Any, Any], models: NamedDependency[Models]) -> dict[str, Any]:
    """List the models that the key may use, under each of their names."""
    hosted_models = usable_models(request, models)
    return {
        "models": [
            _entry(name, hosted.served) for hosted in hosted_models for name in hosted.spec.names
        ]
    }


@get("/api/ps", sync_to_thread=False, responses=errors.RESPONSES)
def processes(request: Request[Any, Any, Any], models: NamedDependency[Models]) -> dict[str, Any]:
    """List the loaded models that the key may use."""
    served = [hosted.served for hosted in usable_models(request, models)]
    return {"models": [_running(model) for model in served if model is not None]}


@post_body(OllamaNameRequest, responses=errors.RESPONSES)
async def show(
    data: JSONBody[Parsed[OllamaNameRequest]], models: NamedDependency[Models]
) -> Response[Any]:
    """Describe a model."""
    model = await find(models, _name(data.body))
    description = Description.of(model)
    template = model.preprocessor.template
    named: dict[str, int | None] = {
        "context_length": description.max_model_len,
        "embedding_length": description.hidden_size,
        "original_context_length": description.trained_len,
    }
    info: dict[str, Any] = {
        "general.architecture": description.family,
        "general.basename": model.llm.model_id,
    }
    info |= {f"{description.family}.{k}": v for k, v in named.items() if v is not None}
    body = {
        "modelfile": f"FROM {model.llm.model_id}",
        "parameters": _parameters(model),
        "template": template.source() if template.exists else "",
        "details": _details(description),
        "model_info": info,
        "capabilities": [
            "completion",
            *(name for each, name in _CAPABILITIES.items() if each in description.capabilities),
        ],
        "modified_at": timestamp(model.created),
    }
    return Response(body, media_type="application/json")


@post_body(OllamaPullRequest, responses=errors.RESPONSES)
async def pull(
    data: JSONBody[Parsed[OllamaPullRequest]], models: NamedDependency[Models]
) -> Response[Any]:
    """Report success for a model that is served. Nothing is fetched over HTTP."""
    name = _name(data.body)
    if plain_name(models, name) not in models.names:
        raise UnsupportedError(
            f"this server does not fetch models: {name[:200]!r} is not one of its own",
            "Run `inferno pull` on its machine, and serve the model.",
        )
    kind = "application/json" if data.body.stream is False else "application/x-ndjson"
    return Response(b'{"status":"success"}\n', media_type=kind)


@route(
    ["/api/push", "/api/create", "/api/copy", "/api/blobs/{digest:path}"],
    http_method=["POST", "HEAD"],
    status_code=400,
    include_in_schema=False,
    sync_to_thread=False,
)
def change() -> Response[Any]:
    """Refuse requests that would change the models."""
    raise _unchanging()


@delete(
    "/api/delete",
    status_code=400,
    include_in_schema=False,
    sync_to_thread=False,
)
def remove() -> Response[Any]:
    """Refuse to delete a model."""
    raise _unchanging()


def _unchanging() -> UnsupportedError:
    return UnsupportedError(
        "this server's models cannot be changed over HTTP",
        "Start it with the models that it is to serve.",
    )


def _name(body: OllamaNameRequest | OllamaPullRequest) -> str:
    name = body.model or body.name
    if not name:
        raise RequestError("no model is named", "Send its name as model.", param="model")
    return name


def _entry(name: str, model: ServedModel | None) -> dict[str, Any]:
    description = None if model is None else Description.of(model)
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(0 if model is None else model.created),
        "size": 0 if description is None else description.nbytes,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": _details(description),
    }


def _running(model: ServedModel) -> dict[str, Any]:
    description = Description.of(model)
    entry = _entry(model.names[0], model)
    entry.pop("modified_at")
    return {
        **entry,
        "expires_at": _NEVER,
        "size_vram": 0 if description.device.startswith("cpu") else description.nbytes,
        "context_length": description.max_model_len,
    }


def _details(found: Description | None) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "" if found is None else found.format,
        "family": "" if found is None else found.family,
        "families": [] if found is None else [found.family],
        "parameter_size": "" if found is None else _size(found.num_parameters),
        "quantization_level": "" if found is None else _level(found.quantization),
    }


def _size(count: int) -> str:
    """Return a number of parameters as Ollama writes it: 7.6B, 134.52M."""
    for unit, value, digits in (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 0)):
        if count >= value:
            return f"{count / value:.{digits}f}{unit}"
    return str(count or "")


def _level(quantization: str) -> str:
    """Return Ollama's name of a quantization, which are those of GGUF's file types."""
    return _DENSE.get(quantization, quantization.upper())


def _parameters(model: ServedModel) -> str:
    """Return the default sampling, one parameter on a line."""
    params = model.preprocessor.default_params
    named = {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
    return "\n".join(f"{name} {value}" for name, value in named.items())
