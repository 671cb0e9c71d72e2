"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.server.api import Models, Parsed, post_body, request_id_of, session_of
from inferno_anthropic.caching import session_for
from inferno_anthropic.errors import RESPONSES
from inferno_anthropic.schema import CountTokensRequest, MessagesRequest
from inferno_anthropic.shape import MessageShape
from inferno_anthropic.translation import translate


@post_body(MessagesRequest, responses=RESPONSES)
async def create_message(
    data: JSONBody[Parsed[MessagesRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Generate the next message of a conversation, in Anthropic's format."""
    body, id = data.body, request_id_of(request)
    model = await models.find(body.model)
    translation = translate(data, model, session_for(body, session_of(body, request.headers)))
    conversation = await translation.prepare(model)
    shape = MessageShape(model, conversation, bool(body.stream), id)
    with translation.naming():
        response = await model.pipeline.respond(conversation.prepared, shape, request.receive)
    response.headers["request-id"] = id
    return response


@post_body(CountTokensRequest, responses=RESPONSES)
async def count_tokens(
    data: JSONBody[Parsed[CountTokensRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Count the tokens of a message's prompt, without generating an answer."""
    model = await models.find(data.body.model)
    conversation = await translate(data, model).prepare(model)
    return Response(
        {"input_tokens": len(conversation.prompt.token_ids)},
        media_type="application/json",
        headers={"request-id": request_id_of(request)},
    )
