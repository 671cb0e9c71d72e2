"""`inferno serve`: the OpenAI API over HTTP, with the engine in a separate process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from inferno.cli.network import Network, network_options
from inferno.cli.operations import operation_options
from inferno.cli.options import (
    DEFAULT_REF,
    FIRST_QUESTION,
    chosen,
    declare,
    engine_options,
    plan_options,
    template_option,
)
from inferno.errors import OptionError

if TYPE_CHECKING:
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
    type=click.FloatRange(0),
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
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="SQLite file for stored responses and conversations. [default: in memory]",
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
    type=click.FloatRange(0, min_open=True),
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
def command(
    ctx: click.RichContext,
    /,
    refs: tuple[str, ...],
    host: str,
    port: int,
    api_keys: tuple[str, ...],
    names: tuple[str, ...],
    strict_params: bool,
    open_paths: tuple[str, ...],
    prompt_history: int,
    shutdown_timeout: float,
    reasoning: str,
    store: Path | None,
    store_size: int,
    store_days: float | None,
    page: bool,
    locked: bool,
    chat_template: str | None,
    config: str | None,
    print_config: bool,
    named: tuple[str, ...],
    idle: str | None,
    max_loaded: int | None,
    keys_file: str | None,
    key_metrics: bool,
    log_format: LogFormat,
    log_level: str,
    log_prompts: bool,
    otlp_endpoint: str | None,
    **values: Any,
) -> None:
    """Serve REF with OpenAI's API at http://HOST:PORT/v1. Several models are loaded on demand, by
    the name in the request."""
    from inferno.process.launch import begin_early, discard_early, launch_early

    is_one = len(refs) < 2 and not named and not print_config
    if is_one:  # unless a configuration file says otherwise
        launch_early()
    else:
        discard_early()
    from inferno.cli import lock, render
    from inferno.cli.config import from_file, printed
    from inferno.cli.session import Clock
    from inferno.cli.several import configured, several
    from inferno.llm import AsyncLLM
    from inferno.plan import open_model, reopen

    clock, network = Clock(), Network.taken(values)
    models = configured(ctx, refs, named)
    if print_config:
        click.echo(printed(ctx, models))
        return
    if not all(names):
        raise OptionError("--served-model-name is empty", "Give a name, or leave it out.")
    is_one = is_one and not from_file(ctx)
    if is_one:
        ref = refs[0] if refs else None
        opened = (
            reopen(lock.read(ref, values))
            if locked
            else open_model(chosen(ref), plan_options(values))
        )
        begin_early(opened.plan)
    elif locked or names:
        flag = "--locked" if locked else "--served-model-name"
        raise OptionError(
            f"{flag} is for one model", "Leave it out; name models by --model NAME=REF."
        )
    else:
        engine = {**values, "chat_template": chat_template}
        found = several(
            ctx,
            models,
            engine,
            idle=idle,
            max_loaded=max_loaded,
            engine_timeout=network.engine_timeout,
        )
    clock.lap("plan")
    from inferno.server import run_server
    from inferno.server.app import OPEN_PATHS
    from inferno.server.responses.store import Store

    stored = Store(store, days=store_days, max_bytes=store_size * 2**20)
    from inferno.server.access.keys import Keys
    from inferno.server.observe.observers import observe

    keys = Keys(api_keys, None if keys_file is None else Path(keys_file))
    clock.lap("imports")

    def ready(url: str, app: Any) -> None:
        chat = f" Chat at {url}/." if page and not url.startswith("unix:") else ""
        name = found.specs[0].name if not is_one else names[0] if names else llm.model_id
        if log_format == "json":  # one object per line, and nothing else
            log.info("serving %s at %s/v1", name, url)
            return
        if is_one:
            clock.lap("engine")
            render.started(llm.plan, clock.laps)
        else:
            for spec in found.specs:
                click.echo(f"  {', '.join(spec.names)}: {spec.ref}", err=True)
        curl = _curl(url, name, keyed=keys.needed)
        click.echo(f"Serving at {url}/v1.{chat} Try:\n{curl}", err=True)

    app = {
        "api_keys": keys,
        "key_metrics": key_metrics,
        "served_names": names,
        "strict_params": strict_params,
        "prompt_history": prompt_history,
        "reasoning": reasoning,
        "page": page,
        "open_paths": (*OPEN_PATHS, *open_paths),
        "store": stored,
        "disable": values["disable"],
        "only": values["only"],
        **network.app,
    }
    if is_one:
        served: AsyncLLM | tuple[ModelSpec, ...] = (
            llm := AsyncLLM.of_opened(
                opened,
                chat_template,
                engine_timeout=network.engine_timeout,
                expect_grammars=True,
            )
        )
    else:
        served = found.specs
        app |= {"budgets": found.budgets, "max_loaded": max_loaded}
    with observe(log_format, log_level, otlp_endpoint, prompts=log_prompts) as observers:
        if network.server["uds"] is None:
            _warn(host, keyed=keys.needed)
        run_server(
            served,
            host=host,
            port=port,
            ready=ready,
            app_options=app | observers,
            shutdown_seconds=shutdown_timeout,
            **network.server,
        )


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
