"""Functions named by text, `"package.module:name"`: imported when first called, so that declaring
one costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from attrs import frozen


@frozen
class Lazy:
    target: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.resolved()(*args, **kwargs)

    def resolved(self) -> Callable[..., Any]:
        module, _, name = self.target.partition(":")
        found: Callable[..., Any] = attrgetter(name)(importlib.import_module(module))
        return found

    def __repr__(self) -> str:
        return self.target


def resolved(target: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, for one that is called often: imported now."""
    return target.resolved() if isinstance(target, Lazy) else target


def function(target: Callable[..., Any] | str) -> Callable[..., Any]:
    """Converter: `"package.module:name"` becomes a callable that imports when it is called."""
    return Lazy(target) if isinstance(target, str) else target


def functions(targets: Mapping[str, Callable[..., Any] | str]) -> Mapping[str, Callable[..., Any]]:
    return {name: function(target) for name, target in targets.items()}


def optional(target: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    return None if target is None else function(target)
