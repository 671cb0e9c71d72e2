"""/v1/responses: create, retrieve, delete, cancel, list the input, count its tokens."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from inferno.errors import RequestError
from inferno.server.access.keys import owner_of
from inferno.server.chat.translate import session_of
from inferno.server.fields.schema import ERROR_RESPONSES
from inferno.server.hosting.models import Models
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.responses.background import Background
from inferno.server.responses.database import Database
from inferno.server.responses.history import history
from inferno.server.responses.pages import After, Limit, Order, answer, answer_page
from inferno.server.responses.running import Running
from inferno.server.responses.schema import InputTokensRequest, ResponsesRequest
from inferno.server.responses.shape import Context, ResponsesShape
from inferno.server.responses.store import Store, checked_id, not_found
from inferno.server.responses.translation import conversation_id, translate

Asked = Request[Any, Any, Any]
_UNENDED = frozenset({"queued", "in_progress"})
_CANCEL_SECONDS, _LOOK_SECONDS = 5.0, 0.2
"""How long another server may take to stop a response, and how often it is looked for."""


@post_body(ResponsesRequest)
async def create_response(
    data: JSONBody[Parsed[ResponsesRequest]],
    request: Asked,
    models: NamedDependency[Models],
    store: NamedDependency[Store],
    running: NamedDependency[Running],
    background: NamedDependency[Background],
) -> Response[Any]:
    """Generate a response to a string or to items."""
    body, owner = data.body, owner_of(request)
    model = await models.find(body.model)
    new, before = await history(body, store, owner)
    translation = translate(data, before, new, session_of(body, request.headers))
    conversation = await translation.prepare(model)
    context = Context(
        owner=owner,
        store=store,
        running=running,
        items=new,
        conversation=conversation_id(body),
    )
    shape = ResponsesShape(model, body, conversation, context)
    with translation.naming():
        if not body.background:
            return await model.pipeline.respond(conversation.prepared, shape, request.receive)
        check_background(body, store)

        async def generate() -> None:
            hosted = await models.find(body.model)  # for itself: the request's hold ends with it
            try:
                await hosted.pipeline.respond(conversation.prepared, shape, _stays)
            except BaseException as error:
                if not shape.begun.is_set():
                    raise
                await shape.failed(error)

        await background.start(generate, shape.begun)
        accepted = shape.snapshot()
        await shape.accept()
        return answer(accepted)


async def _stays() -> Any:
    """What a client sends that never disconnects: nothing."""
    await asyncio.Event().wait()


def check_background(body: ResponsesRequest, store: Store) -> None:
    """Raise RequestError unless a body's response can be generated in the background."""
    if body.stream:
        raise RequestError(
            "background and stream cannot be combined",
            "Leave stream out, and retrieve the response by its id.",
            param="stream",
        )
    if body.store is False or not store.enabled:
        raise RequestError(
            "a response in the background must be stored",
            "Leave store out. Where the server stores nothing, leave background out.",
            param="background",
        )


@post_body(InputTokensRequest)
async def count_input_tokens(
    data: JSONBody[Parsed[InputTokensRequest]],
    request: Asked,
    models: NamedDependency[Models],
    store: NamedDependency[Store],
) -> Response[Any]:
    """Count the tokens of a response's prompt, without generating it."""
    model = await models.find(data.body.model)
    new, before = await history(data.body, store, owner_of(request))
    conversation = await translate(data, before, new).prepare(model)
    count = len(conversation.prompt.token_ids)
    return answer({"object": "response.input_tokens", "input_tokens": count})


@get("/v1/responses/{id:str}", responses=ERROR_RESPONSES)
async def get_response(
    id: FromPath[str],
    request: Asked,
    store: NamedDependency[Store],
    running: NamedDependency[Running],
    stream: FromQuery[bool] = False,
) -> Response[Any]:
    """Return a response, stored or being generated."""
    if stream:
        raise RequestError(
            "a response cannot be streamed again",
            "Leave stream out: the answer has all of it.",
            param="stream",
            code="unsupported_parameter",
        )
    owner = owner_of(request)
    shape = running.find(owner, id)
    if shape is not None and shape.stores:
        return answer(shape.snapshot())
    stored = await store.run(Database.response, owner, checked_id(id, "response"))
    if stored is None:
        raise not_found("response", id)
    return answer(stored.body)


@delete("/v1/responses/{id:str}", status_code=200, responses=ERROR_RESPONSES)
async def delete_response(
    id: FromPath[str],
    request: Asked,
    store: NamedDependency[Store],
    running: NamedDependency[Running],
) -> Response[Any]:
    """Delete a stored response, its input and its output. One in the background is cancelled."""
    checked_id(id, "response")
    shape = running.find(owner_of(request), id)
    if shape is not None and shape.is_background:
        shape.discard()
    if not await store.run(Database.delete, "response", owner_of(request), id):
        raise not_found("response", id)
    return answer({"id": id, "object": "response", "deleted": True})


@post("/v1/responses/{id:str}/cancel", status_code=200, responses=ERROR_RESPONSES)
async def cancel_response(
    id: FromPath[str],
    request: Asked,
    store: NamedDependency[Store],
    running: NamedDependency[Running],
) -> Response[Any]:
    """Stop a response that is being generated, by this server or by another one."""
    owner = owner_of(request)
    shape = running.find(owner, id)
    if shape is not None:
        return answer(shape.cancel())
    await store.run(Database.cancel, owner, checked_id(id, "response"))
    end = asyncio.get_running_loop().time() + _CANCEL_SECONDS
    while True:
        stored = await store.run(Database.response, owner, id)
        if stored is None:
            raise not_found("response", id)
        if stored.body["status"] not in _UNENDED:
            break
        if asyncio.get_running_loop().time() > end:  # its server will, or is about to be found dead
            return answer(stored.body)
        await asyncio.sleep(_LOOK_SECONDS)
    if stored.body["status"] != "cancelled":
        raise RequestError(
            f"the response {id} has ended", "Only a running one can be cancelled.", param="id"
        )
    return answer(stored.body)


@get("/v1/responses/{id:str}/input_items", responses=ERROR_RESPONSES)
async def list_input_items(
    id: FromPath[str],
    request: Asked,
    store: NamedDependency[Store],
    after: After = None,
    limit: Limit = 20,
    order: Order = "desc",
) -> Response[Any]:
    """List a response's own input items."""
    return await answer_page(store, owner_of(request), "response", id, after, limit, order)
