"""The Litestar app: models behind OpenAI's endpoints. No global state: two apps in one process
share nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.types import Message, Receive, Scope, Send

from inferno.server.access.keys import Keys
from inferno.server.access.limiter import Limiter
from inferno.server.batches.service import Batches
from inferno.server.endpoints import bodies_of, handlers_of, installed_apis
from inferno.server.generate.pipeline import PING_SECONDS, Pipeline
from inferno.server.hosting.describe import fields_of
from inferno.server.hosting.hosted_model import HostedModel, ModelSpec
from inferno.server.hosting.models import Models
from inferno.server.hosting.served_model import ServedModel
from inferno.server.http.early import EarlyStreams
from inferno.server.http.gate import ANY, Gate, origins_of
from inferno.server.http.openapi import openapi_config
from inferno.server.http.paths import Routes
from inferno.server.http.refusals import error_response
from inferno.server.observe.metrics import Metrics, ModelView
from inferno.server.observe.prompt_history import LIMIT as PROMPT_HISTORY
from inferno.server.observe.record import Record, Recorded
from inferno.server.observe.watch import Memory
from inferno.server.page import page_handlers
from inferno.server.responses.background import Background
from inferno.server.responses.running import Running
from inferno.server.responses.store import Store

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM

MAX_BODY_BYTES = 64 * 2**20
MAX_WAITING = 1024
OPEN_PATHS = ("/health", "/ping")
"""Routes that need no key."""
REASONING_FIELDS = {
    "both": ("reasoning", "reasoning_content"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
}
"""Clients disagree on the name of the field for reasoning."""


def create_app(
    llm: AsyncLLM | Sequence[ModelSpec],
    *,
    api_keys: Sequence[str] | Keys = (),
    served_names: Sequence[str] = (),
    strict_params: bool = False,
    own_llm: bool = True,
    max_waiting: int | None = MAX_WAITING,
    max_body_bytes: int = MAX_BODY_BYTES,
    reasoning: Literal["both", "reasoning", "reasoning_content"] = "both",
    open_paths: Sequence[str] = OPEN_PATHS,
    ping_seconds: float = PING_SECONDS,
    store: Store | None = None,
    page: bool = True,
    budgets: Mapping[str, int] | None = None,
    max_loaded: int | None = None,
    key_metrics: bool = False,
    on_end: Callable[[Record], object] = lambda record: None,
    log_prompts: bool = False,
    allowed_hosts: Sequence[str] = (ANY,),
    cors_origins: Sequence[str] = (),
    prompt_history: int = PROMPT_HISTORY,
    request_timeout: float | None = None,
    disable: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Litestar:
    """An ASGI app that serves `llm`, to be run by itself or mounted in another.

    With `own_llm` its lifespan starts and closes `llm`. `max_waiting` limits the outputs that wait
    beyond those that run; more get a 429. An answer may take `request_timeout` seconds.
    `strict_params` rejects unknown fields. `open_paths` need no key. `page` serves the chat page at
    `/`, which needs none either. `allowed_hosts` are the names by which clients may call the
    server, and `cors_origins` the web pages that may use it, besides its own; `*` is any.

    Several models may be given instead, to be loaded on demand: see `Models` for `budgets` and
    `max_loaded`. `key_metrics` shows each key's usage, by name. `on_end` is called with the record
    of each request once its response has been sent; `log_prompts` keeps prompts in it.
    `prompt_history` is the number of requests of each model that /v1/debug/cache knows. `store`
    keeps responses and conversations, by default in memory; the app closes it. `disable` and `only`
    choose among the plugins that add endpoints, as they do for a model's.
    """
    apis = installed_apis(disable, only)
    kept, running = store or Store(), Running()
    origins = origins_of(cors_origins)
    keys = api_keys if isinstance(api_keys, Keys) else Keys(api_keys)
    fields = REASONING_FIELDS[reasoning]

    def serve(llm: AsyncLLM, names: Sequence[str], limiter: Limiter) -> ServedModel:
        limiter.limit = None if max_waiting is None else llm.plan.max_num_seqs + max_waiting
        names = tuple(names) or (llm.model_id,)
        memory, measured = Memory(prompt_history), metrics.of(names[0])
        pipeline = Pipeline(llm, limiter, measured, ping_seconds, request_timeout, memory)
        return ServedModel(pipeline, names, fields)

    metrics = Metrics(
        lambda: map(_view, models.hosted), (lambda: keys.all) if key_metrics else None
    )
    if isinstance(llm, Sequence):
        single = None
        hosted_models = [HostedModel(spec) for spec in llm]
    else:
        single = llm
        limiter = Limiter()
        hosted_models = [HostedModel.loaded(serve(llm, served_names, limiter), limiter)]
    models = Models(
        hosted_models,
        lambda hosted, llm: serve(llm, hosted.spec.names, hosted.limiter),
        budgets=budgets,
        max_loaded=max_loaded,
        ping_seconds=ping_seconds,
    )

    background = Background(on_end)
    batches = Batches(kept, keys, lambda: models.draining or models.hosted[0].limiter.draining)

    @contextlib.asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, kept.close)
            stack.push_async_callback(background.close)
            if single is None:
                await stack.enter_async_context(models.running())
            else:
                if own_llm:
                    await single.start()
                    stack.push_async_callback(single.close)
                await asyncio.to_thread(models.named(None).warm_up)
            running_batches = asyncio.create_task(batches.run(inside))
            stack.push_async_callback(_stopped, running_batches)
            yield

    async def count(message: Message, _: Scope) -> None:
        if message["type"] == "http.response.start":
            metrics.answered(message["status"])

    app = Litestar(
        [*handlers_of(apis), *(page_handlers() if page else ())],
        lifespan=[lifespan],
        state=State(
            {
                "models": models,
                "metrics": metrics,
                "strict_params": strict_params,
                "api_keys": keys,
                "apis": apis,
            }
        ),
        dependencies={
            "models": Provide(lambda: models, sync_to_thread=False),
            "store": Provide(lambda: kept, sync_to_thread=False),
            "running": Provide(lambda: running, sync_to_thread=False),
            "background": Provide(lambda: background, sync_to_thread=False),
            "batches": Provide(lambda: batches, sync_to_thread=False),
        },
        guards=[keys.guard(open_paths)],
        exception_handlers={HTTPException: error_response, Exception: error_response},
        before_send=[count],
        request_max_body_size=max_body_bytes,
        openapi_config=openapi_config(bodies_of(apis), apis),
        logging_config=None,
    )
    app.state.fields = fields_of(bodies_of(apis))
    app.state.routes = routes = Routes.of(app)
    streams = EarlyStreams(app.asgi_handler)
    recorded = Recorded(streams, on_end, prompts=log_prompts)

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        """The app for requests of this process, which need not pass the gate."""
        scope["app"] = scope["litestar_app"] = app
        await recorded(scope, receive, send)

    gate = Gate(streams, routes, frozenset(allowed_hosts), origins, apis)
    app.asgi_handler = Recorded(gate, on_end, prompts=log_prompts)
    return app


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def models_of(app: Litestar) -> Models:
    """The app's models, which can be drained together."""
    models: Models = app.state.models
    return models


def keys_of(app: Litestar) -> Keys:
    """The app's keys, which can be read again."""
    keys: Keys = app.state.api_keys
    return keys


def _view(hosted: HostedModel) -> ModelView:
    llm = hosted.served.llm if hosted.served is not None else None
    return ModelView(
        hosted.name,
        hosted.status,
        alive=llm is not None and llm.alive,
        nbytes=hosted.nbytes,
        stats=llm.stats if llm is not None else None,
    )
