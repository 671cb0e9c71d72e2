"""Options of `inferno serve` for operators: the configuration file, several models, keys, logs."""

from __future__ import annotations

from functools import partial

import rich_click as click

from inferno.cli.config import read_config
from inferno.cli.options import together

_models = partial(click.option, panel="Several models")
_watch = partial(click.option, panel="Keys, logs and traces")


def _read_early(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    read_config(ctx, param, value)
    return value


operation_options = together(
    [
        _models(
            "--config",
            metavar="FILE",
            is_eager=True,
            callback=_read_early,
            help="TOML file with options and models. The command line and the environment beat it.",
        ),
        _models(
            "--print-config",
            is_flag=True,
            help="Print the options in force as such a file, and exit.",
        ),
        _models(
            "--model",
            "named",
            multiple=True,
            metavar="NAME=REF",
            help="A model to serve, and its name for clients; may be repeated.",
        ),
        _models(
            "--idle",
            metavar="TIME",
            help="Unload a model after so long without a request: 10m, 1h. [default: never]",
        ),
        _models(
            "--max-loaded",
            type=click.IntRange(1),
            help="Maximum number of models loaded at once; by default as many as there are. Models "
            "without `memory` of their own share --memory by this number.",
        ),
        _watch(
            "--keys",
            "keys_file",
            metavar="FILE",
            help="TOML file with API keys and their limits. SIGHUP reads it again.",
        ),
        _watch("--key-metrics", is_flag=True, help="Show each key's usage in /metrics, by name."),
        _watch("--log-format", type=click.Choice(["text", "json"]), default="text"),
        _watch(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            help="Lowest level that is logged; info has a line for each request.",
        ),
        _watch("--log-prompts", is_flag=True, help="Log the prompts of requests as well."),
        _watch(
            "--otlp-endpoint",
            metavar="URL",
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
            help="Send a trace of each request to this OpenTelemetry collector, such as "
            "http://localhost:4318.",
        ),
    ]
)
