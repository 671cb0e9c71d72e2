"""The Litestar app: one model behind OpenAI's endpoints. No global state: two apps in one process
share nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Literal

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.types import Message, Scope

from inferno.server.endpoints import BODIES, HANDLERS
from inferno.server.errors import error_response
from inferno.server.gate import ANY, Gate, origins_of
from inferno.server.generation import Limiter
from inferno.server.keys import Keys
from inferno.server.metrics import Metrics
from inferno.server.model import ServedModel
from inferno.server.models import Models
from inferno.server.openapi import openapi_config
from inferno.server.page import page_handlers
from inferno.server.paths import Routes
from inferno.server.pipeline import PING_SECONDS, Pipeline
from inferno.server.record import Recorded
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


def create_app(
    llm: AsyncLLM,
    *,
    api_keys: Sequence[str] | Keys = (),
    served_names: Sequence[str] = (),
    strict_params: bool = False,
    own_llm: bool = True,
    max_waiting: int | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    reasoning: Literal["both", "reasoning", "reasoning_content"] = "both",
    open_paths: Sequence[str] = OPEN_PATHS,
    ping_seconds: float = PING_SECONDS,
    store: Store | None = None,
    page: bool = True,
    allowed_hosts: Sequence[str] = (ANY,),
    cors_origins: Sequence[str] = (),
) -> Litestar:
    """An ASGI app that serves `llm`, to be run by itself or mounted in another.

    With `own_llm` its lifespan starts and closes `llm`. `max_waiting` limits the outputs that wait
    beyond those that run; more get a 429. `strict_params` rejects unknown fields. `open_paths` need
    no key. `store` keeps responses and conversations, by default in memory; the app closes it.
    `page` serves the chat page at `/`, which needs no key either. `allowed_hosts` are the names by
    which clients may call the server, and `cors_origins` the web pages that may use it, besides its
    own; `*` is any.
    """
    origins = origins_of(cors_origins)
    keys = api_keys if isinstance(api_keys, Keys) else Keys(api_keys)
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

    async def count(message: Message, _: Scope) -> None:
        if message["type"] == "http.response.start":
            metrics.answered(message["status"])

    app = Litestar(
        [*HANDLERS, *(page_handlers() if page else ())],
        lifespan=[lifespan],
        state=State({"limiter": limiter, "strict_params": strict_params, "keys": keys}),
        dependencies={
            "models": Provide(lambda: models, sync_to_thread=False),
            "store": Provide(lambda: kept, sync_to_thread=False),
            "running": Provide(lambda: running, sync_to_thread=False),
        },
        guards=[keys.guard(open_paths)],
        exception_handlers={HTTPException: error_response, Exception: error_response},
        before_send=[count],
        request_max_body_size=max_body_bytes,
        openapi_config=openapi_config(BODIES),
        logging_config=None,
    )
    app.state.routes = routes = Routes.of(app)
    gate = Gate(app.asgi_handler, routes, frozenset(allowed_hosts), origins)
    app.asgi_handler = Recorded(gate, lambda record: None)
    return app


def limiter_of(app: Litestar) -> Limiter:
    """The app's limiter, which knows what runs and can drain it."""
    limiter: Limiter = app.state.limiter
    return limiter
