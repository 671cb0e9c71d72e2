"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.server.chat.conversation import prepare
from inferno.server.chat.translate import with_headers
from inferno.server.fields.schema import ChatRequest
from inferno.server.hosting.models import Models
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.openai.chat_shape import ChatShape


@post_body(ChatRequest)
async def chat_completions(
    data: JSONBody[Parsed[ChatRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Generate the next message of a conversation."""
    model = await models.find(data.body.model, stream=data.body.stream)
    conversation = await prepare(with_headers(data, request.headers), model)
    shape = ChatShape(model, data.body, conversation)
    return await model.pipeline.respond(conversation.prepared, shape, request.receive)
