"""The Litestar app: one model behind OpenAI's endpoints. No global state: two apps in one process
share nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.types import Guard, Message, Scope

import inferno
from inferno.errors import AuthenticationError
from inferno.server.endpoints import HANDLERS
from inferno.server.errors import error_response
from inferno.server.generation import Limiter
from inferno.server.metrics import Metrics
from inferno.server.model import ServedModel
from inferno.server.models import Models
from inferno.server.pipeline import PING_SECONDS, Pipeline
from inferno.server.responses.running import Running
from inferno.server.responses.store import Store

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM

MAX_BODY_BYTES = 64 * 2**20
OPEN_PATHS = ("/health", "/ping")
"""Routes that need no key."""
REASONING_FIELDS = {
    "both": ("reasoning", "reasoning_content"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
}
"""Clients disagree on the name of the field for reasoning."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def create_app(
    llm: AsyncLLM,
    *,
    api_keys: Sequence[str] = (),
    served_names: Sequence[str] = (),
    strict_params: bool = False,
    own_llm: bool = True,
    max_waiting: int | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    reasoning: Literal["both", "reasoning", "reasoning_content"] = "both",
    open_paths: Sequence[str] = OPEN_PATHS,
    ping_seconds: float = PING_SECONDS,
    store: Store | None = None,
) -> Litestar:
    """An ASGI app that serves `llm`, to be run by itself or mounted in another.

    With `own_llm` its lifespan starts and closes `llm`. `max_waiting` limits the outputs that wait
    beyond those that run; more get a 429. `strict_params` rejects unknown fields. `open_paths` need
    no key. `store` keeps responses and conversations, by default in memory; the app closes it.
    """
    metrics = Metrics(lambda: llm.stats, lambda: llm.alive)
    limiter = Limiter(None if max_waiting is None else llm.plan.max_num_seqs + max_waiting)
    pipeline = Pipeline(llm, limiter, metrics, ping_seconds)
    model = ServedModel(pipeline, served_names, REASONING_FIELDS[reasoning])
    models = Models(model)
    kept, running = store or Store(), Running()

    @contextlib.asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        if own_llm:
            await llm.start()
        try:
            await asyncio.to_thread(model.warm_up)
            yield
        finally:
            if own_llm:
                await llm.close()
            await asyncio.to_thread(kept.close)

    async def stamp(message: Message, scope: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", _request_id(scope)),
            ]
            metrics.answered(message["status"])

    return Litestar(
        HANDLERS,
        lifespan=[lifespan],
        state=State({"limiter": limiter, "strict_params": strict_params}),
        dependencies={
            "models": Provide(lambda: models, sync_to_thread=False),
            "store": Provide(lambda: kept, sync_to_thread=False),
            "running": Provide(lambda: running, sync_to_thread=False),
        },
        guards=[_key_guard(api_keys, open_paths)] if api_keys else [],
        exception_handlers={HTTPException: error_response, Exception: error_response},
        before_send=[stamp],
        request_max_body_size=max_body_bytes,
        openapi_config=OpenAPIConfig(
            title="inferno",
            version=inferno.__version__,
            path="/schema",
            render_plugins=[JsonRenderPlugin()],
        ),
        logging_config=None,
    )


def limiter_of(app: Litestar) -> Limiter:
    """The app's limiter, which knows what runs and can drain it."""
    limiter: Limiter = app.state.limiter
    return limiter


def _key_guard(api_keys: Sequence[str], open_paths: Sequence[str]) -> Guard:
    known = [hashlib.sha256(key.encode()).digest() for key in api_keys]

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if handler.paths & set(open_paths):
            return
        scheme, _, key = connection.headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(key.strip().encode()).digest() if scheme.lower() == "bearer" else b""
        # Compares every key in constant time, so that timing reveals nothing.
        if not sum(hmac.compare_digest(given, each) for each in known):
            raise AuthenticationError(
                "the API key is missing or wrong", "Send it as a header: Authorization: Bearer KEY"
            )
        connection.scope.setdefault("state", {})["key_digest"] = given.hex()

    return guard


def _request_id(scope: Scope) -> bytes:
    """The client's request id, if safe for a header and a log line, else a new one."""
    state: dict[str, Any] = scope.setdefault("state", {})
    sent = next(
        (v.decode("latin-1") for k, v in scope["headers"] if k == b"x-request-id"),
        state.get("request_id"),
    )
    return (sent if sent and _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex).encode()
