"""POST /api/chat and /api/generate."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import RequestError
from inferno.server.api import (
    CompletionRequest,
    Models,
    Parsed,
    Prepared,
    ServedModel,
    post_body,
    prepare_text,
    read,
)
from inferno_ollama import errors
from inferno_ollama.schema import Generating, OllamaChatRequest, OllamaGenerateRequest
from inferno_ollama.shape import GenerateShape, OllamaShape, timestamp
from inferno_ollama.translation import find, translate_chat, translate_prompt


@post_body(OllamaChatRequest, responses=errors.RESPONSES)
async def chat(
    data: JSONBody[Parsed[OllamaChatRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Generate the next message of a conversation, as Ollama does."""
    body = data.body
    model = await find(models, body.model)
    if not body.messages:
        return _loaded(body, {"message": {"role": "assistant", "content": ""}})
    conversation = await translate_chat(data, model).prepare(model)
    shape = OllamaShape(model, body.model, conversation.parsers[0], logprobs=bool(body.logprobs))
    return await model.pipeline.respond(conversation.prepared, shape, request.receive)


@post_body(OllamaGenerateRequest, responses=errors.RESPONSES)
async def generate(
    data: JSONBody[Parsed[OllamaGenerateRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Answer or continue a prompt, as Ollama does."""
    body = data.body
    model = await find(models, body.model)
    if not body.prompt:
        return _loaded(body, {"response": ""})
    if body.raw or (body.system is None and not model.preprocessor.template.exists):
        prepared, parser = await _raw(data, model), None
    else:
        conversation = await translate_prompt(data, model).prepare(model)
        prepared, parser = conversation.prepared, conversation.parsers[0]
    shape = GenerateShape(model, body.model, parser, logprobs=bool(body.logprobs))
    return await model.pipeline.respond(prepared, shape, request.receive)


async def _raw(parsed: Parsed[OllamaGenerateRequest], model: ServedModel) -> Prepared:
    """Prepare a prompt that is continued as it is. Raises RequestError."""
    body = parsed.body
    given = {"system": body.system, "think": body.think, "images": body.images}
    if name := next((name for name, value in given.items() if value), None):
        raise RequestError(
            f"{name} needs the chat template, which raw leaves out",
            f"Leave {name} or raw out.",
            param=name,
        )
    translation = translate_prompt(parsed, model)
    chat = {
        # the completion endpoint's own default is 16
        "max_tokens": model.preprocessor.max_model_len,
        **{name: value for name, value in translation.chat.items() if value is not None},
        "prompt": body.prompt,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
    }
    for name in ("messages", "top_logprobs", "reasoning_effort"):
        chat.pop(name, None)
    with translation.naming():
        read_as = read(chat, CompletionRequest)
        ignored = (*translation.ignored, *read_as.ignored)
        prepared, _ = await prepare_text(Parsed(read_as.body, ignored), model)
    return prepared


def _loaded(body: Generating, part: dict[str, Any]) -> Response[Any]:
    """Answer a request without a prompt: the model is loaded."""
    answer = {
        "model": body.model,
        "created_at": timestamp(time.time()),
        **part,
        "done": True,
        "done_reason": "load",
    }
    return Response(answer, media_type="application/json")
