"""Functions named by a string, `"package.module:name"`: imported when first called, so that
declaring one costs nothing."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

import attrs
from attrs import field, frozen

from inferno.errors import InfernoError, PluginError

T = TypeVar("T")
_TARGET = re.compile(r"[\w.]+:[\w.]+")


@frozen
class Lazy:
    target: str
    owner: str = field(default="a plugin", eq=False)
    """The distribution and the field that name it, for errors."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.resolved()(*args, **kwargs)

    def resolved(self) -> Callable[..., Any]:
        """Import and return the function. Raises PluginError if that fails."""
        module, _, name = self.target.partition(":")
        try:
            member: Callable[..., Any] = attrgetter(name)(importlib.import_module(module))
        except InfernoError:
            raise
        except Exception as error:  # a module of a plugin may fail in any way
            raise PluginError(
                f"{self.owner} is {self.target!r}, which cannot be imported: "
                f"{type(error).__name__}: {error}",
                "Repair or upgrade that plugin, or run without it: --disable NAME.",
            ) from error
        return member

    def __repr__(self) -> str:
        return self.target


def resolved(target: Callable[..., Any]) -> Callable[..., Any]:
    """Import a function now that is called often, to save the lazy wrapper's cost."""
    return target.resolved() if isinstance(target, Lazy) else target


def function(target: Callable[..., Any] | str) -> Callable[..., Any]:
    """Converter: `"package.module:name"` becomes a callable that imports when it is called."""
    if not isinstance(target, str):
        return target
    if not _TARGET.fullmatch(target):
        raise PluginError(
            f"{target!r} names no function", 'Write it as "package.module:name", or import it.'
        )
    return Lazy(target)


def functions(targets: Mapping[str, Callable[..., Any] | str]) -> Mapping[str, Callable[..., Any]]:
    return {name: function(target) for name, target in targets.items()}


def optional(target: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    return None if target is None else function(target)


def owned(item: T, distribution: str) -> T:
    """Return the declaration, with its owner recorded in each lazy function for errors."""
    changed: dict[str, Any] = {}
    for declared in attrs.fields(type(item)):  # type: ignore[arg-type]
        value = getattr(item, declared.name)
        where = f"{distribution}: {type(item).__name__} {getattr(item, 'name', '')!r}, "
        where += f"field {declared.name}"
        if isinstance(value, Lazy):
            changed[declared.name] = attrs.evolve(value, owner=where)
        elif isinstance(value, Mapping):
            changed[declared.name] = {
                key: attrs.evolve(entry, owner=f"{where}[{key!r}]")
                if isinstance(entry, Lazy)
                else entry
                for key, entry in value.items()
            }
    return attrs.evolve(item, **changed) if changed else item  # type: ignore[misc]
