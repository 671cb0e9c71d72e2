"""What llama.cpp's clients ask about the server, and POST /apply-template."""

from __future__ import annotations

from typing import Any

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody

from inferno import __version__
from inferno.server.api import (
    Models,
    Parsed,
    ServedModel,
    TokenizeRequest,
    current_record,
    post_body,
)
from inferno_llamacpp.schema import LlamaTemplateRequest
from inferno_llamacpp.shape import settings


@get("/props", sync_to_thread=False)
def props(models: NamedDependency[Models], model: FromQuery[str | None] = None) -> dict[str, Any]:
    """Describe the server and a model's default sampling, as llama.cpp does."""
    served = _named(models, model)
    template = served.preprocessor.template
    defaults = settings(served, served.preprocessor.default_params)
    return {
        "default_generation_settings": {
            "n_ctx": served.preprocessor.max_model_len,
            "params": defaults,
        },
        "total_slots": served.num_rows,
        "model_alias": served.names[0],
        "model_path": served.llm.plan.path,
        "modalities": {"vision": False, "audio": False},
        "chat_template": template.source() if template.exists else "",
        "build_info": f"inferno-{__version__}",
    }


@get("/slots", sync_to_thread=False)
def slots(
    models: NamedDependency[Models], model: FromQuery[str | None] = None
) -> list[dict[str, Any]]:
    """List as many slots as sequences can run at once, as llama.cpp does. Requests are not assigned
    to slots."""
    served = _named(models, model)
    running = served.llm.stats.num_running
    return [
        {
            "id": i,
            "n_ctx": served.preprocessor.max_model_len,
            "is_processing": i < running,
        }
        for i in range(served.num_rows)
    ]


@post_body(LlamaTemplateRequest)
async def apply_template(
    data: JSONBody[Parsed[LlamaTemplateRequest]], models: NamedDependency[Models]
) -> Response[Any]:
    """Render a conversation with the chat template."""
    body = data.body
    model = await models.find(body.model)
    request = TokenizeRequest(
        messages=body.messages,
        tools=body.tools,
        chat_template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
    )
    rendering = await model.encode_chat(request, body.tools or [])
    answer: dict[str, Any] = {"prompt": rendering.text}
    if ignored := (*data.ignored, *rendering.ignored):
        answer["x_inferno"] = {"ignored": ignored}
    return Response(answer, media_type="application/json")


def _named(models: Models, name: str | None) -> ServedModel:
    """Return a loaded model that the request's key may use."""
    record = current_record()
    if record is not None and record.key is not None:
        record.key.check_model(models.get(name).spec.names)
    return models.named(name)
