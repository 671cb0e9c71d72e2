"""What describes the server."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from litestar import Response, get
from litestar.di import NamedDependency

from inferno.server.api import Models


@get("/health_generate")
async def health(models: NamedDependency[Models]) -> Response[None]:
    """Generate a token. A model that sleeps or is paused is well."""
    model = await models.find(None)
    if not (model.llm.is_sleeping or model.llm.is_paused):
        one = evolve(model.preprocessor.default_params, max_tokens=1)
        await model.llm.generate([0], one)
    return Response(None, status_code=200)


@get(["/model_info", "/get_model_info"])
async def model_info(models: NamedDependency[Models]) -> dict[str, Any]:
    """Describe the first model."""
    return _described(models)


@get(["/server_info", "/get_server_info"])
async def server_info(models: NamedDependency[Models]) -> dict[str, Any]:
    """Describe the server, which has one rank."""
    paused = models.named(None).llm.is_paused
    ranks = {"tp_size": 1, "dp_size": 1, "pp_size": 1}
    return {**_described(models), **ranks, "internal_states": [{"paused": paused}]}


@get(["/weight_version", "/get_weight_version"])
async def weight_version(models: NamedDependency[Models]) -> dict[str, Any]:
    """Return the version of the weights."""
    return {"weight_version": models.named(None).llm.weight_version}


@get("/get_world_size")
async def world_size() -> dict[str, int]:
    """Return the number of ranks."""
    return {"world_size": 1}


def _described(models: Models) -> dict[str, Any]:
    model = models.named(None)
    plan = model.llm.plan
    return {
        "model_path": plan.path,
        "tokenizer_path": plan.path,
        "served_model_name": models.names[0],
        "is_generation": True,
        "weight_version": model.llm.weight_version,
    }
