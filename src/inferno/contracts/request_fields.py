"""Request fields: fields of a request's body that a plugin understands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from attrs import field, frozen

from inferno.contracts import lazy

JSONType = Literal["boolean", "integer", "number", "string", "array", "object"]


@frozen(kw_only=True)
class FieldEffect:
    """What a field changes in its request."""

    sampling: Mapping[str, Any] = field(factory=dict)
    """Sampling parameters by name, which replace those in the body."""
    logits_processors: Sequence[Mapping[str, Any]] = ()
    """Logits processors to add: {"name": ..., "args": {...}}."""
    template_variables: Mapping[str, Any] = field(factory=dict)
    """Variables for the chat template."""


def _paths(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@frozen(kw_only=True)
class RequestField:
    """A field that request bodies may have. Null means that it is not given."""

    name: str
    type: JSONType
    apply: Callable[[Any], FieldEffect] = field(converter=lazy.function)
    """apply(value) -> what it changes. Raises ValueError if the value is wrong. Imports no
    torch."""
    help: str
    """What it does, as a sentence for the reference and the server's schema."""
    endpoints: frozenset[str] = field(
        default=frozenset({"/v1/chat/completions", "/v1/completions"}), converter=_paths
    )
    """Paths of the endpoints that have it."""
    minimum: float | None = None
    """Of a number; of a string or an array, its length."""
    maximum: float | None = None
    api_version: int = 1
