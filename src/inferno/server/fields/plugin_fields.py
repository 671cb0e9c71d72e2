"""Fields of request bodies that plugins understand (`inferno_request_fields`). They change the body
before it is parsed, so that no endpoint needs to know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import fields_dict

from inferno.contracts import JSONType, RequestField
from inferno.errors import RequestError
from inferno.request.sampling_params import parameters

_TYPES: Mapping[JSONType, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def applied(
    raw: dict[str, Any], body: type[Any], known: Mapping[str, RequestField]
) -> dict[str, Any]:
    """Return a body of that class with the effects of its plugin fields applied and the fields
    removed. Raises RequestError."""
    declared = fields_dict(body)
    given = {
        name: known[name]
        for name in raw.keys() & known.keys() - declared.keys()
        if body.path in known[name].endpoints
    }
    if not given:
        return raw
    changed = {name: value for name, value in raw.items() if name not in given}
    for name, field in given.items():
        if (value := raw[name]) is not None:
            _check(field, value)
            _apply(field, value, changed, declared)
    return changed


def _check(field: RequestField, value: Any) -> None:
    """Raise RequestError unless the value has the field's type and is within its limits."""
    is_kind = isinstance(value, _TYPES[field.type]) and (
        field.type == "boolean" or not isinstance(value, bool)
    )
    if not is_kind:
        raise RequestError(
            f"{field.name} must be of type {field.type}", field.help, param=field.name
        )
    size = len(value) if isinstance(value, str | list) else value
    low, high = field.minimum, field.maximum
    if isinstance(size, dict | bool):
        return
    if (low is not None and size < low) or (high is not None and size > high):
        what = "length" if isinstance(value, str | list) else "value"
        bounds = [f"at least {low:g}"] if low is not None else []
        bounds += [f"at most {high:g}"] if high is not None else []
        raise RequestError(
            f"{field.name} is out of range",
            f"Its {what} must be {' and '.join(bounds)}.",
            param=field.name,
        )


def _apply(
    field: RequestField, value: Any, changed: dict[str, Any], declared: Mapping[str, object]
) -> None:
    try:
        effect = field.apply(value)
    except ValueError as error:
        raise RequestError(f"{field.name}: {error}", field.help, param=field.name) from error
    sampling = {each.name for each in parameters() if each.in_body}
    if unknown := sorted(effect.sampling.keys() - sampling):
        raise RequestError(
            f"the plugin behind {field.name} sets the unknown parameter {unknown[0]!r}",
            "Upgrade or remove that plugin.",
            param=field.name,
        )
    changed |= effect.sampling
    if effect.logits_processors:
        before = changed.get("logits_processors") or []
        changed["logits_processors"] = [*before, *effect.logits_processors]
    if effect.template_variables and "chat_template_kwargs" in declared:
        before = changed.get("chat_template_kwargs") or {}
        changed["chat_template_kwargs"] = {**before, **effect.template_variables}
