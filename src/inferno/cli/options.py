"""Options that several commands share, and their way into `plan.Options`. vLLM's names where the
meaning is vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from inferno.cli import DEBUG
from inferno.errors import OptionError

if TYPE_CHECKING:
    from inferno.plan import Options

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[Any], Any]

DEFAULT_REF = "demo"

_DTYPES = {
    "auto": "auto",
    "float32": "float32",
    "float": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "fp16": "float16",
}


def declare(function: Callable[..., Any]) -> click.Command:
    """A command whose options may also come from the environment: `--max-model-len` from
    `INFERNO_MAX_MODEL_LEN`."""
    settings = {"help_option_names": ["-h", "--help"], "show_default": True}
    first = click.option_panel("Options")  # a command's own options before the shared ones
    command = click.command(function.__module__.rpartition(".")[2], context_settings=settings)(
        first(function)
    )
    for option in command.params:
        if isinstance(option, click.Option) and option.expose_value:
            flag = next(o for o in option.opts if o.startswith("--"))
            option.envvar = "INFERNO_" + flag[2:].replace("-", "_").upper()
    return command


def together(decorators: list[_Decorator]) -> Callable[[_Command], _Command]:
    def decorate(function: _Command) -> _Command:
        return reduce(lambda f, decorator: decorator(f), reversed(decorators), function)

    return decorate


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[DEBUG] = value


ref_argument = click.argument("ref", required=False)
debug_option = click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_set_debug,
    help="Show tracebacks.",
)

_engine = partial(click.option, panel="Engine")
_places = partial(click.option, panel="Model and plugins")

plugin_options = together(
    [
        _places(
            "--disable",
            multiple=True,
            metavar="NAME",
            help="Go without this plugin; may be repeated.",
        ),
        _places(
            "--only",
            multiple=True,
            metavar="NAME",
            help="Go with this plugin and the built-in one only.",
        ),
    ]
)

source_options = together(
    [
        _places("--revision", help="Branch, tag or commit of a model on the hub."),
        _places(
            "--offline", is_flag=True, default=None, help="Use what is on this machine already."
        ),
    ]
)

template_option = _places(
    "--chat-template", metavar="FILE", help="Another Jinja template than the model's own."
)

engine_options = together(
    [
        _engine(
            "--dtype",
            type=click.Choice(list(_DTYPES)),
            help="Compute type. [default: the checkpoint's]",
        ),
        _engine("--device", help="cpu, cuda. [default: the best there is]"),
        _engine(
            "--memory",
            metavar="SIZE",
            help="All the memory to use, weights included: 8GiB, or 60% of what there is.",
        ),
        _engine(
            "--gpu-memory-utilization",
            type=float,
            metavar="0..1",
            help="The same, as a share of the device's.",
        ),
        _engine(
            "--max-model-len",
            type=int,
            help="Longest context, in tokens. [default: the model's, if it fits]",
        ),
        _engine(
            "--kv-cache-dtype",
            metavar="TYPE",
            help="auto, fp8_e4m3 or int8. [default: the compute type]",
        ),
        _engine("--max-num-seqs", type=int, help="Most requests that run at once."),
        _engine("--max-num-batched-tokens", type=int, help="Most tokens in one step."),
        _engine(
            "--block-size",
            type=int,
            help="Tokens per cache block. [default: what attention likes best]",
        ),
        _engine("--attention-backend", metavar="NAME", help="[default: the best that can]"),
        _engine("--cache-policy", metavar="NAME", help="Prefix cache: lru, none, or a plugin's."),
        _engine(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            default=None,
            help="The same as a switch.",
        ),
        _engine(
            "--threads", type=int, help="CPU threads. [default: the cores, or one for a tiny model]"
        ),
        _engine("--isq", metavar="SCHEME", help="Quantize the weights while loading."),
        source_options,
        plugin_options,
        debug_option,
    ]
)


def chosen(ref: str | None) -> str:
    """The model to use, saying so where none was named."""
    if ref is None:
        click.echo(f"No model named: taking `{DEFAULT_REF}`, a toy.", err=True)
    return ref or DEFAULT_REF


def plan_options(values: Mapping[str, Any]) -> Options:
    """Command-line values as `plan.Options`. Raises OptionError for what cannot be honoured."""
    from attrs import fields

    from inferno.plan import Options

    given = {name: value for name, value in values.items() if value is not None and value != ()}
    if "dtype" in given:
        given["dtype"] = _DTYPES[given["dtype"]]
    _fold_prefix_caching(given)
    known = {attribute.name for attribute in fields(Options)}
    for name in given.keys() - known:
        raise OptionError(
            f"--{name.replace('_', '-')} cannot be honoured by this version", "Leave it out."
        )
    return Options(progress=True, **given)


def _fold_prefix_caching(given: dict[str, Any]) -> None:
    enable = given.pop("enable_prefix_caching", None)
    policy = given.get("cache_policy")
    if enable is None or (enable and policy not in (None, "none")):
        return
    if policy is not None and enable == (policy == "none"):
        switch = "--enable-prefix-caching" if enable else "--no-enable-prefix-caching"
        raise OptionError(
            f"{switch} and --cache-policy {policy} exclude each other", "Give one of them."
        )
    if not enable:
        given["cache_policy"] = "none"
