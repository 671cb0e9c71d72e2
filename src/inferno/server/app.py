"""The Litestar app: models behind OpenAI's endpoints. No global state: two apps in one process
share nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.types import Message, Receive, Scope, Send

from inferno.server.access.keys import Keys
from inferno.server.access.limiter import Costs, Limiter
from inferno.server.batches.service import Batches
from inferno.server.chat.fetching import ImageFetcher
from inferno.server.endpoints import bodies_of, handlers_of, installed_apis
from inferno.server.generate.pipeline import Pipeline
from inferno.server.hosting.describe import fields_of
from inferno.server.hosting.hosted_model import HostedModel, ModelSpec
from inferno.server.hosting.models import Models
from inferno.server.hosting.served_model import ServedModel, num_rows
from inferno.server.http.early import EarlyStreams
from inferno.server.http.gate import ANY, Gate, origins_of
from inferno.server.http.openapi import openapi_config
from inferno.server.http.paths import Routes
from inferno.server.http.refusals import error_response
from inferno.server.observe.metrics import Metrics
from inferno.server.observe.processes import ModelView
from inferno.server.observe.record import Recorded
from inferno.server.observe.watch import Memory
from inferno.server.options import ServerOptions
from inferno.server.page import page_handlers
from inferno.server.responses.background import Background
from inferno.server.responses.heartbeat import beat
from inferno.server.responses.running import Running

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM

FIRST_COME = "first-come"
"""The queue that knows no keys."""
REASONING_FIELDS = {
    "both": ("reasoning", "reasoning_content"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
}
"""Clients disagree on the name of the field for reasoning."""


def create_app(
    llm: AsyncLLM | Sequence[ModelSpec], options: ServerOptions | None = None
) -> Litestar:
    """Return an ASGI app that serves `llm`, or several models to be loaded on demand. It may be run
    by itself or mounted in another."""
    options = options or ServerOptions()
    apis = installed_apis(options.disable, options.only)
    keys, store = options.api_keys, options.store
    single = None if isinstance(llm, Sequence) else llm
    fetcher = ImageFetcher(options.images)
    models, metrics = _hosted(llm, options, fetcher)
    store.limit(keys.quota_of)
    background, running = Background(options.on_end), Running()
    batches = Batches(store, keys, lambda: models.draining or models.hosted[0].limiter.draining)

    @contextlib.asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, store.close)
            stack.push_async_callback(background.close)
            stack.callback(fetcher.close)
            if single is None:
                await stack.enter_async_context(models.running())
            else:
                if options.own_llm:
                    await single.start()
                    stack.push_async_callback(single.close)
                await asyncio.to_thread(models.named(None).warm_up)
            if store.is_shared:
                heartbeat = asyncio.create_task(beat(store, running, batches))
                stack.push_async_callback(_stopped, heartbeat)
            running_batches = asyncio.create_task(batches.run(inside))
            stack.push_async_callback(_stopped, running_batches)
            yield

    async def count(message: Message, _: Scope) -> None:
        if message["type"] == "http.response.start":
            metrics.answered(message["status"])

    injected = {
        "models": models,
        "store": store,
        "running": running,
        "background": background,
        "batches": batches,
    }
    state = {
        "models": models,
        "metrics": metrics,
        "strict_params": options.strict_params,
        "api_keys": keys,
        "apis": apis,
        "fields": fields_of(bodies_of(apis)),
    }
    app = Litestar(
        [*handlers_of(apis), *(page_handlers() if options.page else ())],
        lifespan=[lifespan],
        state=State(state),
        dependencies={name: _provided(value) for name, value in injected.items()},
        guards=[keys.guard(options.open_paths)],
        exception_handlers={HTTPException: error_response, Exception: error_response},
        before_send=[count],
        request_max_body_size=options.max_body_bytes,
        openapi_config=openapi_config(bodies_of(apis), apis),
        logging_config=None,
    )
    app.state.routes = routes = Routes.of(app)
    streams = EarlyStreams(app.asgi_handler)
    recorded = Recorded(streams, options.on_end, prompts=options.log_prompts)

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        """The app for requests of this process, which need not pass the gate."""
        scope["app"] = scope["litestar_app"] = app
        await recorded(scope, receive, send)

    hosts, origins = frozenset(options.allowed_hosts or (ANY,)), origins_of(options.cors_origins)
    gate = Gate(streams, routes, hosts, origins, apis)
    app.asgi_handler = Recorded(gate, options.on_end, prompts=options.log_prompts)
    return app


def _hosted(
    llm: AsyncLLM | Sequence[ModelSpec], options: ServerOptions, fetcher: ImageFetcher
) -> tuple[Models, Metrics]:
    """Return the app's models, and the metrics of all of them."""

    def serve(llm: AsyncLLM, names: Sequence[str], limiter: Limiter) -> ServedModel:
        most = options.max_waiting
        limiter.limit = None if most is None else num_rows(llm) + most
        limiter.max_wait, limiter.costs = options.max_wait, lambda: _costs(llm)
        names = tuple(names) or (llm.model_id,)
        pipeline = Pipeline(
            llm,
            limiter,
            metrics.of(names[0]),
            options.ping_seconds,
            options.request_timeout,
            Memory(options.prompt_history),
        )
        fields = REASONING_FIELDS[options.reasoning]
        return ServedModel(pipeline, names, fields, fetcher)

    shown_keys = (lambda: options.api_keys.all) if options.key_metrics else None
    metrics = Metrics(
        lambda: map(_view, models.hosted),
        shown_keys,
        options.store,
        lambda owner: sum(each.limiter.waiting(owner) for each in models.hosted),
        options.api_keys.guesses,
    )
    if isinstance(llm, Sequence):
        hosted_models = [HostedModel(spec) for spec in llm]
    else:
        served = serve(llm, options.served_names, limiter := Limiter())
        hosted_models = [HostedModel.loaded(served, limiter)]
    models = Models(
        hosted_models,
        lambda hosted, llm: serve(llm, hosted.spec.names, hosted.limiter),
        budgets=options.budgets,
        max_loaded=options.max_loaded,
        ping_seconds=options.ping_seconds,
    )
    return models, metrics


def _costs(llm: AsyncLLM) -> Costs:
    plan, stats = llm.plan, llm.stats
    shares = plan.queue_policy != FIRST_COME
    return Costs(num_rows(llm), stats.prompt_seconds, stats.row_seconds, shares)


def _provided(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


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
        health=llm.health if llm is not None else None,
        engines=llm.engines if llm is not None else (),
        wait=hosted.limiter.wait(""),
    )
