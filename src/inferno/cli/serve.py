"""`inferno serve`: the OpenAI API over HTTP, with the engine in a separate process."""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import rich_click as click
from attrs import field, fields, frozen

from inferno.cli.early import engine_process
from inferno.cli.network import Network, network_options
from inferno.cli.operations import operation_options
from inferno.cli.options import (
    DEFAULT_REF,
    FIRST_QUESTION,
    FiniteRange,
    chosen,
    declare,
    engine_options,
    plan_options,
    template_option,
)
from inferno.cli.rank import follows
from inferno.cli.shares import how_to_join
from inferno.errors import OptionError

if TYPE_CHECKING:
    from inferno.cli.config import ModelConfig
    from inferno.cli.session import Clock
    from inferno.llm import AsyncLLM
    from inferno.process.launch import EngineProcess
    from inferno.server.hosting.hosted_model import ModelSpec
    from inferno.server.observe.logs import LogFormat

log = logging.getLogger("inferno.server")


@declare
@click.argument("refs", nargs=-1, metavar="[REF]...")
@click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000)
@click.option(
    "--api-key", "api_keys", multiple=True, help="Key that clients must send; may be repeated."
)
@click.option(
    "--served-model-name",
    "names",
    multiple=True,
    help="Model name for clients; may be repeated.",
)
@click.option(
    "--strict-params",
    is_flag=True,
    help="Reject unknown request fields instead of listing them in the response.",
)
@click.option(
    "--shutdown-timeout",
    type=FiniteRange(0),
    default=30,
    help="Seconds that running requests may take to finish at shutdown.",
)
@click.option(
    "--reasoning",
    type=click.Choice(["both", "reasoning", "reasoning_content"]),
    default="both",
    help="Message field for reasoning output; clients differ.",
)
@click.option(
    "--open-path",
    "open_paths",
    multiple=True,
    help="Path that needs no API key, such as /metrics; may be repeated.",
)
@click.option(
    "--store",
    metavar="STORE",
    help="SQLite file, or a URL such as postgresql://..., for responses, conversations, files and "
    "batches. [default: in memory]",
)
@click.option(
    "--store-size",
    type=click.IntRange(0),
    metavar="MIB",
    default=256,
    help="MiB of the store; the least recently used is deleted first. 0 stores nothing.",
)
@click.option(
    "--store-days",
    type=FiniteRange(0, min_open=True),
    help="Days after its last use when a stored response is deleted. [default: never]",
)
@click.option("--page/--no-page", default=True, help="Serve the chat page at /.")
@click.option(
    "--prompt-history",
    type=click.IntRange(0),
    default=64,
    help="Number of requests that /v1/debug/cache can explain.",
)
@click.option("--seed", type=int, help="Engine seed: makes requests without a seed reproducible.")
@click.option(
    "--locked", is_flag=True, help="Run exactly the plan in ./inferno.lock (see explain --lock)."
)
@template_option
@network_options
@operation_options
@engine_options
@click.pass_context
def command(ctx: click.RichContext, /, refs: tuple[str, ...], **values: Any) -> None:
    """Serve REF with OpenAI's API at http://HOST:PORT/v1. Several models are loaded on demand, by
    the name in the request."""
    if follows(refs[0] if refs else None, values):
        return
    serving, network = Serving.taken(values), Network.taken(values)
    is_one = len(refs) < 2 and not serving.named and not serving.print_config
    process = engine_process() if is_one else None  # unless a configuration file has several
    if ctx.obj is not None and not is_one:
        ctx.obj.discard()
    from inferno.cli.config import from_file, printed
    from inferno.cli.session import Clock
    from inferno.cli.several import configured

    clock = Clock()
    models = configured(ctx, refs, serving.named)
    if serving.print_config:
        click.echo(printed(ctx, models))
        return
    if not all(serving.names):
        raise OptionError("--served-model-name is empty", "Give a name, or leave it out.")
    if is_one and not from_file(ctx):
        served = _one(refs[0] if refs else None, serving, network, values, process)
    else:
        if process is not None:
            process.discard()
        served = _several(ctx, models, serving, network, values)
    clock.lap("plan")
    if values.get("pd_server"):
        _prefill(served)
    else:
        _run(served, serving, network, clock)


@frozen(kw_only=True)
class Serving:
    """The command's options but those of the engine and of the network."""

    host: str
    port: int
    api_keys: tuple[str, ...]
    names: tuple[str, ...]
    strict_params: bool
    open_paths: tuple[str, ...]
    prompt_history: int
    shutdown_timeout: float
    reasoning: Literal["both", "reasoning", "reasoning_content"]
    store: str | None = field(repr=False)  # may have a password
    store_size: int
    store_days: float | None
    page: bool
    locked: bool
    chat_template: str | None
    config: str | None
    print_config: bool
    named: tuple[str, ...]
    idle: str | None
    max_loaded: int | None
    keys_file: str | None
    key_metrics: bool
    log_format: LogFormat
    log_level: str
    log_prompts: bool
    otlp_endpoint: str | None
    disable: tuple[str, ...]
    only: tuple[str, ...]

    @classmethod
    def taken(cls, values: dict[str, Any]) -> Serving:
        """Take the options out of the command's values. Those that choose plugins are the engine's
        too."""
        shared = {name: values[name] for name in ("disable", "only")}
        names = [each.name for each in fields(cls) if each.name not in shared]
        return cls(**{name: values.pop(name) for name in names}, **shared)


@frozen(kw_only=True)
class _Served:
    """The models, and what `ServerOptions` say of them."""

    llm: AsyncLLM | tuple[ModelSpec, ...]
    name: str
    """The first model's, for clients."""
    options: Mapping[str, Any]


def _one(
    ref: str | None,
    serving: Serving,
    network: Network,
    engine: Mapping[str, Any],
    process: EngineProcess | None,
) -> _Served:
    from inferno.cli import lock
    from inferno.llm import AsyncLLM
    from inferno.plan import open_model, plan_of_engine, reopen

    if serving.locked:
        opened = reopen(lock.read(ref, engine))
    else:
        opened = open_model(chosen(ref), plan_options(engine))
    how_to_join(opened.plan)
    if process is not None and opened.plan.dealt is None:  # else it is told where engines meet
        process.begin(plan_of_engine(opened.plan, 0))
    llm = AsyncLLM.of_opened(
        opened,
        serving.chat_template,
        engine_timeout=network.engine_timeout,
        expect_grammars=True,
        early=process,
    )
    name = next(iter(serving.names), llm.model_id)
    return _Served(llm=llm, name=name, options={"served_names": serving.names})


def _several(
    ctx: click.Context,
    models: Sequence[ModelConfig],
    serving: Serving,
    network: Network,
    engine: Mapping[str, Any],
) -> _Served:
    from inferno.cli.several import several

    if serving.locked or serving.names:
        flag = "--locked" if serving.locked else "--served-model-name"
        raise OptionError(
            f"{flag} is for one model", "Leave it out; name models by --model NAME=REF."
        )
    group = several(
        ctx,
        models,
        {**engine, "chat_template": serving.chat_template},
        idle=serving.idle,
        max_loaded=serving.max_loaded,
        engine_timeout=network.engine_timeout,
    )
    options = {"budgets": group.budgets, "max_loaded": serving.max_loaded}
    return _Served(llm=group.specs, name=group.specs[0].name, options=options)


def _prefill(served: _Served) -> None:
    """Compute prompts for other instances, without HTTP, until a signal ends it."""
    import asyncio

    llm = served.llm
    if isinstance(llm, tuple):
        raise OptionError("--pd-server is for one model", "Start an instance for each.")

    async def run() -> None:
        ended = asyncio.Event()
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, ended.set)
        async with llm:
            store = llm.plan.store
            url = store.link.url if store is not None and store.link is not None else ""
            click.echo(f"Computing prompts of {served.name} for those that call {url}.", err=True)
            await ended.wait()

    asyncio.run(run())


def _run(served: _Served, serving: Serving, network: Network, clock: Clock) -> None:
    from inferno.server import run_server
    from inferno.server.access.keys import Keys
    from inferno.server.observe.observers import observe
    from inferno.server.options import OPEN_PATHS, ServerOptions
    from inferno.server.responses.store import Store

    store_bytes = serving.store_size * 2**20
    store = Store(
        serving.store,
        days=serving.store_days,
        max_bytes=store_bytes,
        disable=serving.disable,
        only=serving.only,
    )
    file = serving.keys_file
    keys = Keys(serving.api_keys, None if file is None else Path(file))
    clock.lap("imports")
    with observe(serving.log_format, serving.log_level, serving.otlp_endpoint) as on_end:
        if network.server["uds"] is None:
            _warn(serving.host, keyed=keys.needed)
        run_server(
            served.llm,
            host=serving.host,
            port=serving.port,
            ready=lambda url, _: _announce(url, served, serving, clock, keyed=keys.needed),
            app_options=ServerOptions(
                api_keys=keys,
                key_metrics=serving.key_metrics,
                strict_params=serving.strict_params,
                prompt_history=serving.prompt_history,
                reasoning=serving.reasoning,
                page=serving.page,
                open_paths=(*OPEN_PATHS, *serving.open_paths),
                store=store,
                disable=serving.disable,
                only=serving.only,
                on_end=on_end,
                log_prompts=serving.log_prompts,
                **served.options,
                **network.app,
            ),
            shutdown_seconds=serving.shutdown_timeout,
            **network.server,
        )


def _announce(url: str, served: _Served, serving: Serving, clock: Clock, *, keyed: bool) -> None:
    """Say what is served, where, and how to ask it."""
    from inferno.cli import render

    chat = f" Chat at {url}/." if serving.page and not url.startswith("unix:") else ""
    if serving.log_format == "json":  # one object per line, and nothing else
        log.info("serving %s at %s/v1", served.name, url)
        return
    if isinstance(served.llm, tuple):
        for spec in served.llm:
            click.echo(f"  {', '.join(spec.names)}: {spec.ref}", err=True)
    else:
        clock.lap("engine")
        render.started(served.llm.plan, clock.laps)
    curl = _curl(url, served.name, keyed=keyed)
    click.echo(f"Serving at {url}/v1.{chat} Try:\n{curl}", err=True)


def _warn(host: str, *, keyed: bool) -> None:
    if host not in ("127.0.0.1", "localhost", "::1") and not keyed:
        log.warning("listening on %s without --api-key: anyone who can connect can use it", host)


def _curl(url: str, model: str, *, keyed: bool) -> str:
    question = "What does math.gcd do?" if model == DEFAULT_REF else FIRST_QUESTION
    messages = f'[{{"role": "user", "content": "{question}"}}]'
    body = f'{{"model": "{model}", "messages": {messages}}}'
    key = " -H 'Authorization: Bearer YOUR_KEY'" if keyed else ""
    if url.startswith("unix:"):
        url = f"--unix-socket {url.removeprefix('unix:')} http://localhost"
    return f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
