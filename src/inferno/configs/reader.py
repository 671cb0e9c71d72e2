"""Reads `config.json` into an attrs class by field name, strictly. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs
import cattrs
from cattrs.v import format_exception

from inferno.errors import CheckpointError

C = TypeVar("C")


def _number(value: Any, kind: type) -> Any:
    """Return `value` as an int or a float. Refuses bool, NaN and Infinity, which Python's JSON
    allows, and 1e3 or "12" for an int."""
    allowed = (int, float) if kind is float else (int,)
    if (
        isinstance(value, bool)
        or not isinstance(value, allowed)
        or not -math.inf < value < math.inf
    ):
        raise TypeError(f"{value!r} is not {'a number' if kind is float else 'an integer'}")
    return kind(value)


def _switch(value: Any, kind: type) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


_converter = cattrs.Converter(forbid_extra_keys=False, detailed_validation=True)
_converter.register_structure_hook(int, _number)
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook(bool, _switch)  # cattrs would treat bool as int


def read_config(cls: type[C], config: Mapping[str, Any]) -> C:
    """Read `config` into `cls`, an attrs class whose fields are named as in `config.json`. Other
    fields are ignored.

    A null counts as absent if the field has a default. Raises CheckpointError naming each bad
    field.
    """
    fields = attrs.fields_dict(cls)  # type: ignore[arg-type]
    given = {
        name: value
        for name, value in config.items()
        if name in fields and not (value is None and fields[name].default is not attrs.NOTHING)
    }
    _check_sizes(given)
    try:
        return _converter.structure(given, cls)
    except cattrs.ClassValidationError as error:
        problems = "; ".join(cattrs.transform_error(error, "config.json", _explained)[:5])
        raise CheckpointError(
            f"{cls.__name__}: {problems}", "Check the model's config.json."
        ) from error


def _explained(error: BaseException, kind: type | None) -> str:
    """Describe an error: a field's validator already names the field and its constraint."""
    if kind is None and isinstance(error, ValueError):
        return str(error)
    return format_exception(error, kind)


_LISTED = (
    "num_hidden_layers",
    "encoder_layers",
    "depth",
    "conf_num_hidden_layers",
    "num_nextn_predict_layers",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
)
"""Counts of modules that are built one by one, before any tensor is looked up."""
_MOST_LISTED, _LARGEST = 10_000, 2**31 - 1
"""Far beyond any model, and rejected before anything is built."""


def _check_sizes(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        most = _MOST_LISTED if name in _LISTED else _LARGEST
        if isinstance(value, int) and abs(value) > most:
            raise CheckpointError(f"config.json: {name} is {value}", f"It must be at most {most}.")


def check_known(config: Mapping[str, Any], field: str, *known: Any) -> None:
    """Raise CheckpointError if `field` is given but not one of `known`: the model would compute
    something else."""
    if field in config and config[field] not in known:
        raise CheckpointError(
            f"config.json: {field} is {config[field]!r}",
            f"This plugin computes {' or '.join(map(repr, known))} only.",
        )


def check_positive(**numbers: int) -> None:
    """Raise CheckpointError unless every size is at least 1."""
    for name, number in numbers.items():
        if number < 1:
            raise CheckpointError(f"config.json: {name} is {number}", "It must be at least 1.")


def check_experts(num_experts: int, picked: int, groups: int = 1, top_groups: int = 1) -> None:
    """Raise CheckpointError unless `picked` experts can be selected from the `top_groups` best of
    equally large groups."""
    check_positive(
        num_experts=num_experts, num_experts_per_tok=picked, n_group=groups, topk_group=top_groups
    )
    in_group, rest = divmod(num_experts, groups)
    if rest or top_groups > groups or picked > top_groups * in_group:
        grouped = (
            f", topk_group {top_groups} of n_group {groups}"
            if (groups, top_groups) != (1, 1)
            else ""
        )
        raise CheckpointError(
            f"config.json: num_experts_per_tok is {picked} of {num_experts} experts{grouped}",
            "Groups must be equally large, and the selected ones must have enough experts.",
        )
