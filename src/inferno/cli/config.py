"""The file of `inferno serve`: every option by its name, and a table for each model.

port = 8000
memory = "40GiB"

[models.small]
ref = "Qwen/Qwen3-0.6B"
pin = true
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import attrs
import rich_click as click
from attrs import frozen
from click.core import ParameterSource

from inferno.errors import OptionError

MODELS = "inferno.models"
"""Key of `ctx.meta`: the file's model tables."""
_SECRET = ("api_keys",)
_OWN = ("config", "print_config", "named")
"""Options that a file cannot have."""
_TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@frozen(kw_only=True)
class ModelTable:
    """The fields of a model's table besides the engine's options."""

    ref: str
    """The model: a directory, a file, a hub id, `package:NAME`, or `demo`."""
    aliases: tuple[str, ...] = ()
    """Other names for clients."""
    pin: bool = False
    """Never unload it to make room, nor when it is idle."""
    preload: bool | None = None
    """Load it when the server starts. [default: only the first model]"""
    idle: str | None = None
    """Unload it after so long without a request: `10m`, `1h`. [default: --idle]"""


@frozen(kw_only=True)
class ModelConfig:
    """A model of the server: what to load, and with which options."""

    name: str
    table: ModelTable
    options: Mapping[str, Any]
    """The engine's options that its table sets, as the command line names them."""


def read_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Make a file's options the defaults of the command, and remember its models. Raises
    OptionError."""
    if value is None:
        return
    content = load(Path(value))
    tables = content.pop("models", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise OptionError("models in the file is not a table", "Write [models.NAME] tables.")
    known = _settable(ctx.command.params)
    settings: dict[str, Any] = {}
    for key, setting in content.items():
        option = known.get(key.replace("-", "_"))
        if option is None:
            raise _unknown(key, value, [*known, "models"])
        settings[option.name or ""] = _checked(key, setting, option, ctx)
    ctx.default_map = {**(ctx.default_map or {}), **settings}
    ctx.meta[MODELS] = [_model(ctx, name, table) for name, table in tables.items()]


def load(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises OptionError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(
            f"cannot read the configuration {path}: {error}", "Give a TOML file."
        ) from error


def from_file(ctx: click.Context) -> list[ModelConfig]:
    """The models of the configuration file."""
    configs: list[ModelConfig] = ctx.meta.get(MODELS, [])
    return configs


def given(ctx: click.Context, name: str) -> bool:
    """Whether an option comes from the command line or the environment, which beat the file."""
    return ctx.get_parameter_source(name) in (
        ParameterSource.COMMANDLINE,
        ParameterSource.ENVIRONMENT,
    )


def seconds(text: str | float | None, what: str) -> float | None:
    """Parse `90`, `90s`, `10m`, `1h` or `1d` into seconds. Raises OptionError."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)\s*", str(text))
    if match is None:
        raise OptionError(f"{what} is {text!r}, which is not a time", "Write it as 90s, 10m or 1h.")
    return float(match[1]) * _TIMES[match[2]]


def printed(ctx: click.Context, models: Iterable[ModelConfig]) -> str:
    """Write the options in force as a file for `--config`, with where each comes from."""
    lines = []
    for key, option in _settable(ctx.command.params).items():
        name = option.name or ""
        value, source = ctx.params.get(name), ctx.get_parameter_source(name)
        origin = {
            ParameterSource.COMMANDLINE: "command line",
            ParameterSource.ENVIRONMENT: "environment",
            ParameterSource.DEFAULT_MAP: "file",
        }.get(source, "default")  # type: ignore[arg-type]
        if name in _SECRET and value:
            lines.append(f"# {key}: {len(value)} given by the {origin}, not shown")
        elif name == "store" and "://" in str(value):  # it may have a password
            lines.append(f"# {key}: a URL given by the {origin}, not shown")
        elif value is None or value == ():
            lines.append(f"# {key} =  # not set")
        else:
            lines.append(f"{key} = {_toml(value)}  # {origin}")
    for model in models:
        lines += ["", f"[models.{_toml_key(model.name)}]"]
        table = attrs.asdict(model.table, filter=lambda _, value: value not in (None, (), False))
        lines += [f"{key} = {_toml(value)}" for key, value in {**table, **model.options}.items()]
    return "\n".join(lines)


def _model(ctx: click.Context, name: str, table: Mapping[str, Any]) -> ModelConfig:
    fields = {a.name: a for a in attrs.fields(ModelTable)}
    options = {
        key: option
        for key, option in _settable(ctx.command.params).items()
        if option.name in engine_names(ctx.command.params)
    }
    values: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    for key, value in table.items():
        key = key.replace("-", "_")
        where = f"models.{name}.{key}"
        if key in fields:
            if problem := _problem(key, value):
                raise OptionError(f"{where} {problem}", "Correct the file.")
            values[key] = tuple(value) if isinstance(value, list) else value
        elif key in options:
            option = options[key]
            engine[option.name or ""] = _checked(where, value, option, ctx)
        else:
            raise _unknown(where, None, [*fields, *options])
    if "ref" not in values:
        raise OptionError(
            f"models.{name} has no `ref`", "Add one: a directory, a file or a hub id."
        )
    if "idle" in values:
        seconds(values["idle"], f"models.{name}.idle")
    return ModelConfig(name=name, table=ModelTable(**values), options=engine)


def engine_names(params: Iterable[click.Parameter]) -> frozenset[str]:
    """The options of `serve` that are a model's own."""
    from inferno.plan import Options

    known = {a.name for a in attrs.fields(Options)} | {"chat_template", "enable_prefix_caching"}
    return frozenset(p.name for p in params if p.name in known)


def _settable(params: Iterable[click.Parameter]) -> dict[str, click.Option]:
    """The options that a file may set, by the flag's name."""
    by_flag = {}
    for param in params:
        if isinstance(param, click.Option) and param.expose_value and param.name not in _OWN:
            flag = next(o for o in param.opts if o.startswith("--"))
            by_flag[flag[2:].replace("-", "_")] = param
    return by_flag


def _checked(key: str, value: Any, option: click.Option, ctx: click.Context) -> Any:
    """Check a value of the file as the command line would, and return it."""
    if option.multiple and isinstance(value, str):
        value = [value]
    if option.is_flag and not isinstance(value, bool):
        raise OptionError(f"{key} is {value!r}", "Write true or false.")
    if isinstance(value, bool) and not option.is_flag:
        raise OptionError(f"{key} is {_toml(value)}", f"Give {option.type.name}.")
    try:
        as_text = isinstance(value, float) and not option.multiple  # else its fraction is cut off
        return option.type_cast_value(ctx, str(value) if as_text else value)
    except click.BadParameter as error:
        raise OptionError(f"{key} is {value!r}: {error.message}", "Correct the file.") from error


def _problem(key: str, value: Any) -> str | None:
    if key in ("pin", "preload"):
        return None if isinstance(value, bool) else "is not true or false"
    if key == "aliases":
        names = isinstance(value, list) and all(isinstance(v, str) for v in value)
        return None if names else "is not a list of names"
    if key == "idle" and isinstance(value, int) and not isinstance(value, bool):
        return None
    return None if isinstance(value, str) else "is not a string"


def _unknown(key: str, path: str | None, known: list[str]) -> OptionError:
    near = get_close_matches(key.rpartition(".")[2].replace("-", "_"), known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(sorted(known))}."
    where = f" in {path}" if path else ""
    return OptionError(f"unknown key {key!r}{where}", hint)


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)  # of a path, too


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
