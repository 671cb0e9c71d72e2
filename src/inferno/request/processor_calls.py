"""The logits processors that a request names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from inferno.errors import RequestError


@frozen
class ProcessorCall:
    """A logits processor that a request names, with its arguments in JSON."""

    name: str
    args: str = "{}"

    @property
    def values(self) -> dict[str, Any]:
        arguments: dict[str, Any] = json.loads(self.args)
        return arguments


def processor_calls(value: Iterable[Any] | None) -> tuple[ProcessorCall, ...]:
    """Convert [{"name": ..., "args": {...}}], or calls. Raises RequestError."""
    return tuple(_call(each, f"logits_processors[{i}]") for i, each in enumerate(value or ()))


def _call(given: Any, param: str) -> ProcessorCall:
    if isinstance(given, ProcessorCall):
        return given
    args = given.get("args") or {} if isinstance(given, Mapping) else None
    if (
        args is None
        or not isinstance(given.get("name"), str)
        or not isinstance(args, Mapping)
        or given.keys() - {"name", "args"}
    ):
        raise RequestError(
            f"{param} is not a logits processor",
            'Send {"name": string, "args": object}.',
            param=param,
        )
    try:
        return ProcessorCall(given["name"], json.dumps(args))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"{param}.args is not JSON: {error}", "Send plain values.", param=f"{param}.args"
        ) from error
