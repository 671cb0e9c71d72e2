"""Sampling options, derived from `sampling_params`. Options not given keep the model's
defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import rich_click as click

from inferno.cli.options import together
from inferno.errors import OptionError
from inferno.request.sampling_params import INTERACTIVE, Parameter, parameters

_FORMS: dict[Any, dict[str, Any]] = {
    int: {"type": int},
    float: {"type": float},
    bool: {"is_flag": True, "default": None},
    tuple[str, ...]: {"multiple": True},
    tuple[int, ...]: {"multiple": True, "type": int},
    Mapping[int, float]: {"multiple": True, "metavar": "ID=BIAS"},
}
"""click's arguments for each parameter type."""

_PARAMETERS = tuple(p for p in parameters() if p.flag)


def _help(parameter: Parameter) -> str:
    repeated = " May be repeated." if _FORMS[parameter.type].get("multiple") else ""
    default = parameter.flag_default
    if parameter.name in INTERACTIVE:
        default += f", else {INTERACTIVE[parameter.name]:g}"
    return f"{parameter.help}{repeated}" + (f" [default: {default}]" if default else "")


def options_of(found: Iterable[Parameter]) -> list[Callable[[Any], Any]]:
    """One click option for each parameter."""
    return [
        click.option(
            f"--{p.name.replace('_', '-')}",
            *filter(None, [p.short_flag]),
            panel="Sampling",
            help=_help(p),
            **_FORMS[p.type],
        )
        for p in found
    ]


sampling_options = together(options_of(_PARAMETERS))


def take_sampling(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the sampling options from `values`; return those given, by `SamplingParams`' names."""
    taken = {p: values.pop(p.name) for p in _PARAMETERS}
    return {
        p.name: _biases(value) if p.type == Mapping[int, float] else value
        for p, value in taken.items()
        if value is not None and value != ()
    }


def _biases(pairs: tuple[str, ...]) -> Mapping[int, float]:
    try:
        return {int(token): float(bias) for token, bias in (pair.split("=") for pair in pairs)}
    except ValueError:
        raise OptionError(
            f"--logit-bias {' '.join(pairs)} is not ID=BIAS", "Write --logit-bias 42=-100."
        ) from None
