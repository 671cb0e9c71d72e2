"""`inferno serve`: the OpenAI API over HTTP, with the engine in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from inferno.cli.options import (
    chosen,
    declare,
    engine_options,
    plan_options,
    ref_argument,
    template_option,
)


@declare
@ref_argument
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
    "--max-waiting",
    type=click.IntRange(0),
    help="Maximum number of waiting requests; more get a 429. [default: unlimited]",
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
@click.option("--seed", type=int, help="Engine seed: makes requests without a seed reproducible.")
@click.option(
    "--locked", is_flag=True, help="Run exactly the plan in ./inferno.lock (see explain --lock)."
)
@template_option
@engine_options
def command(
    ref: str | None,
    host: str,
    port: int,
    api_keys: tuple[str, ...],
    names: tuple[str, ...],
    strict_params: bool,
    open_paths: tuple[str, ...],
    max_waiting: int | None,
    shutdown_timeout: float,
    reasoning: str,
    store: Path | None,
    store_size: int,
    store_days: float | None,
    page: bool,
    locked: bool,
    chat_template: str | None,
    **values: Any,
) -> None:
    """Serve REF with OpenAI's API at http://HOST:PORT/v1."""
    from inferno.cli import lock, render
    from inferno.cli.session import Clock
    from inferno.llm import AsyncLLM
    from inferno.plan import open_model, reopen

    clock = Clock()
    opened = (
        reopen(lock.read(ref, values)) if locked else open_model(chosen(ref), plan_options(values))
    )
    clock.lap("plan")
    from inferno.server import run_server
    from inferno.server.app import OPEN_PATHS
    from inferno.server.responses.store import Store

    stored = Store(store, days=store_days, max_bytes=store_size * 2**20)
    clock.lap("imports")
    llm = AsyncLLM.of_opened(opened, chat_template)

    def ready(url: str, llm: AsyncLLM) -> None:
        clock.lap("engine")
        render.started(llm.plan, clock.laps)
        chat = f" Chat at {url}/." if page else ""
        click.echo(
            f"Serving at {url}/v1.{chat} "
            f"Try:\n{_curl(url, names[0] if names else llm.model_id, api_keys)}",
            err=True,
        )

    _warn(host, api_keys)
    app = {
        "api_keys": api_keys,
        "served_names": names,
        "strict_params": strict_params,
        "max_waiting": max_waiting,
        "reasoning": reasoning,
        "page": page,
        "open_paths": (*OPEN_PATHS, *open_paths),
        "store": stored,
    }
    run_server(
        llm, host=host, port=port, ready=ready, app_options=app, shutdown_seconds=shutdown_timeout
    )


def _warn(host: str, api_keys: tuple[str, ...]) -> None:
    if host not in ("127.0.0.1", "localhost", "::1") and not api_keys:
        click.echo(
            f"Listening on {host} without --api-key: anyone who can connect can use it.", err=True
        )


def _curl(url: str, model: str, api_keys: tuple[str, ...]) -> str:
    messages = '[{"role": "user", "content": "What does math.gcd do?"}]'
    body = f'{{"model": "{model}", "messages": {messages}}}'
    key = " -H 'Authorization: Bearer YOUR_KEY'" if api_keys else ""
    return f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
