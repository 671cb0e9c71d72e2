"""The Litestar app: one model behind OpenAI's endpoints. Pure: two apps in one process know nothing
of each other."""

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
from inferno.server import routes
from inferno.server.chat import chat_completions
from inferno.server.completions import completions
from inferno.server.errors import AuthenticationError, log, respond
from inferno.server.events import PING_SECONDS
from inferno.server.generation import Limiter
from inferno.server.metrics import Metrics
from inferno.server.output_parser import Dialect
from inferno.server.service import Service

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
"""Clients are split over the name of the field that holds a model's thoughts."""

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
) -> Litestar:
    """An ASGI app that serves `llm`, to be run by itself or mounted in another.

    With `own_llm` its lifespan starts and closes `llm`. `max_waiting` is how many outputs may wait
    beyond those that run; more get a 429. `strict_params` refuses unknown fields. `open_paths` need
    no key even where there are keys.
    """
    metrics = Metrics(lambda: llm.stats, lambda: llm.alive)
    service = Service(
        llm=llm,
        gate=Limiter(None if max_waiting is None else llm.plan.max_num_seqs + max_waiting),
        metrics=metrics,
        served_names=tuple(served_names),
        strict_params=strict_params,
        reasoning_fields=REASONING_FIELDS[reasoning],
        ping_seconds=ping_seconds,
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        if own_llm:
            await llm.start()
        try:
            await asyncio.to_thread(_warm, service)
            yield
        finally:
            if own_llm:
                await llm.close()

    async def stamp(message: Message, scope: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", _request_id(scope)),
            ]
            metrics.answered(message["status"])

    return Litestar(
        [
            chat_completions,
            completions,
            routes.list_models,
            routes.get_model,
            routes.health,
            routes.version,
            routes.metrics,
            routes.tokenize,
            routes.detokenize,
        ],
        lifespan=[lifespan],
        state=State({"service": service}),
        dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
        guards=[_key_guard(api_keys, open_paths)] if api_keys else [],
        exception_handlers={HTTPException: respond, Exception: respond},
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


def service_of(app: Litestar) -> Service:
    """What the app's handlers share: its gate, its metrics."""
    service: Service = app.state.service
    return service


def _warm(service: Service) -> None:
    """What would else hold up every stream at the first chat: imports, and the template's
    compilation."""
    llm = service.llm
    try:
        service.dialect = Dialect.of(llm.response_template, llm.tokenizer)
    except ValueError as error:
        log.warning(
            "no tools and no reasoning: the checkpoint's response_template cannot be used: %s",
            error,
        )
    with contextlib.suppress(Exception):  # a template may refuse this conversation and take others
        llm.render_chat([{"role": "user", "content": "."}])


def _key_guard(api_keys: Sequence[str], open_paths: Sequence[str]) -> Guard:
    known = [hashlib.sha256(key.encode()).digest() for key in api_keys]

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if handler.paths & set(open_paths):
            return
        scheme, _, key = connection.headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(key.strip().encode()).digest() if scheme.lower() == "bearer" else b""
        # Every key is compared, each in constant time: how long it takes says nothing.
        if not sum(hmac.compare_digest(given, each) for each in known):
            raise AuthenticationError(
                "the API key is missing or wrong", "Send it as a header: Authorization: Bearer KEY"
            )

    return guard


def _request_id(scope: Scope) -> bytes:
    """The client's own, if it is fit for a header and a log line, else a new one."""
    state: dict[str, Any] = scope.setdefault("state", {})
    sent = next(
        (v.decode("latin-1") for k, v in scope["headers"] if k == b"x-request-id"),
        state.get("request_id"),
    )
    return (sent if sent and _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex).encode()
