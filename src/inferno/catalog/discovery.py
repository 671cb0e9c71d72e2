"""Finds the installed plugins by entry point and calls each one's hooks once."""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from types import FunctionType, ModuleType
from typing import Any

import pluggy

from inferno.catalog.catalog import Catalog
from inferno.catalog.offers import KINDS, Offer, Plugin, SetAside
from inferno.catalog.versions import current
from inferno.contracts import lazy
from inferno.errors import InfernoError, OptionError, PluginError
from inferno.hookspecs import ENGINE, HOOKS

GROUPS = tuple(dict.fromkeys(hook.group for hook in HOOKS.values()))
"""The entry-point groups in which plugins register."""


def load_catalog(
    *, disable: Iterable[str] = (), only: Iterable[str] = (), groups: Collection[str] = (ENGINE,)
) -> Catalog:
    """Load the plugins of this environment that are registered in those groups. `disable` and
    `only` name entry points or distributions, of any group; `only` keeps the built-in ones."""
    disabled, enabled = set(disable), set(only)
    plugins: list[Plugin] = []
    offers: dict[str, list[Offer[Any]]] = {
        name: [] for name, hook in HOOKS.items() if hook.group in groups
    }
    managers = {group: _manager(group) for group in groups}
    seen: set[str] = set()
    for entry, distribution, version in _entry_points():
        names = {entry.name, distribution}
        seen |= names
        if entry.group not in groups:
            continue
        if names & disabled or (enabled and not names & enabled and entry.name != "builtin"):
            plugins.append(Plugin(entry.name, distribution, version, disabled=True))
            continue
        try:
            declared, set_aside = _ask(entry, managers[entry.group])
            offered = {
                hook: [
                    Offer(current(lazy.owned(item, distribution)), distribution) for item in items
                ]
                for hook, items in declared.items()
            }
        except Exception as error:  # a plugin's failure must not stop the others
            plugins.append(_broken(entry.name, distribution, version, error))
            continue
        for hook, batch in offered.items():
            offers[hook] += batch
        named = {hook: tuple(i.name for i in items) for hook, items in declared.items()}
        plugins.append(Plugin(entry.name, distribution, version, named, set_aside=set_aside))
    if unknown := (disabled | enabled) - seen:
        raise OptionError(
            f"no plugin is called {', '.join(sorted(unknown))}",
            f"Installed: {', '.join(sorted(seen))}.",
        )
    return Catalog(tuple(plugins), {hook: tuple(batch) for hook, batch in offers.items()})


def _entry_points() -> list[tuple[importlib.metadata.EntryPoint, str, str]]:
    """Return every entry point of the groups with its distribution, in a fixed order. A
    distribution found twice counts once."""
    path = tuple((folder, _changed(folder)) for folder in sys.path)
    return list(_entry_points_in(path, importlib.metadata.entry_points))


def _changed(folder: str) -> int | None:
    """Return when something was last installed into a folder, or removed from it."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return None


@functools.lru_cache(maxsize=4)
def _entry_points_in(
    path: tuple[tuple[str, int | None], ...],
    read: Callable[[], importlib.metadata.EntryPoints],
) -> tuple[tuple[importlib.metadata.EntryPoint, str, str], ...]:
    """Read what is installed in `sys.path` as it is now. Every engine asks, and reading the
    metadata of fifty distributions takes as long as asking them."""
    entries: dict[tuple[str, str, str], tuple[importlib.metadata.EntryPoint, str, str]] = {}
    installed = read()
    for entry in (entry for group in GROUPS for entry in installed.select(group=group)):
        if entry.dist is not None:
            metadata = entry.dist.metadata  # parsed anew at each access
            name = metadata["Name"]
            entries.setdefault((name, entry.name, entry.group), (entry, name, metadata["Version"]))
    return tuple(entries[key] for key in sorted(entries))


class _Manager(pluggy.PluginManager):
    """Knows the hooks of a group. Of a module it looks at functions alone: pluggy looks at every
    attribute, past its getters, which took half of the time of a catalog."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        if isinstance(plugin, ModuleType) and not isinstance(vars(plugin).get(name), FunctionType):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def _manager(group: str) -> pluggy.PluginManager:
    """Return a manager that knows a group's hooks and no plugin."""
    manager = _Manager(ENGINE)
    hooks = {name: hook.function for name, hook in HOOKS.items() if hook.group == group}
    manager.add_hookspecs(type("Hooks", (), hooks))
    return manager


def _ask(
    entry: importlib.metadata.EntryPoint, manager: pluggy.PluginManager
) -> tuple[dict[str, list[Any]], tuple[SetAside, ...]]:
    """Call every hook that the plugin implements. Returns its declarations by hook, and those of
    another API version. The manager knows one plugin at a time, so that its mistakes do not affect
    others."""
    plugin = entry.load()
    try:
        manager.register(plugin, name=entry.name)
        try:
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise _unknown(error, entry.group) from error
        return _declared(entry.group, manager)
    finally:
        if manager.is_registered(plugin):
            manager.unregister(plugin)


def _declared(
    group: str, manager: pluggy.PluginManager
) -> tuple[dict[str, list[Any]], tuple[SetAside, ...]]:
    declared: dict[str, list[Any]] = {}
    aside: list[SetAside] = []
    for hook in HOOKS:
        if HOOKS[hook].group != group or not (call := getattr(manager.hook, hook)).get_hookimpls():
            continue
        kind = KINDS[hook]
        for items in call():
            bucket = declared.setdefault(hook, [])
            for item in items:
                if not isinstance(item, kind):
                    raise PluginError(
                        f"{hook} returned {item!r}",
                        f"It must return a list of contracts.{kind.__name__}.",
                    )
                name = getattr(item, "name", None)
                if not isinstance(name, str) or not name:
                    raise PluginError(
                        f"{hook} returned a declaration with the name {name!r}",
                        "A name is a string, and not empty.",
                    )
                other = _of_another_version(hook, item)
                if other is None:
                    bucket.append(item)
                else:
                    aside.append(other)
    return declared, tuple(aside)


def _unknown(error: pluggy.PluginValidationError, group: str) -> PluginError:
    """Name a function that is marked as a hook and is none of this group, and the hook or group
    that was probably meant."""
    match = re.search(r"'(\w+)'", str(error))
    name = match[1] if match else str(error)
    if name in HOOKS:
        return PluginError(
            f"{name} is no hook of the entry-point group {group!r}",
            f"Register its module in the group {HOOKS[name].group!r}.",
        )
    near = difflib.get_close_matches(name, KINDS, 1)
    remedy = f"Did you mean {near[0]}?" if near else f"Hooks: {', '.join(KINDS)}."
    return PluginError(f"there is no hook {name}", remedy)


def _of_another_version(hook: str, item: Any) -> SetAside | None:
    """Return why a declaration is set aside whose contract version this kernel does not support, or
    None."""
    oldest, newest = HOOKS[hook].versions
    speaks = item.api_version
    if isinstance(speaks, int) and oldest <= speaks <= newest:
        return None
    known = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
    return SetAside(
        hook,
        item.name,
        f"{item.name!r} has version {speaks} of {hook}, but this inferno supports {known}",
        "Upgrade inferno."
        if isinstance(speaks, int) and speaks > newest
        else "Upgrade the plugin.",
    )


def _broken(name: str, distribution: str, version: str, error: Exception) -> Plugin:
    """Return a plugin that is set aside entirely, with a remedy."""
    remedy = f"Repair or upgrade {distribution}."
    if isinstance(error, ModuleNotFoundError) and error.name:
        remedy = f"Install {error.name.partition('.')[0]}, or repair {distribution}."
    elif isinstance(error, InfernoError) and error.remedy:
        remedy = f"{error.remedy} {remedy}"
    return Plugin(
        name,
        distribution,
        version,
        error=_line(error),
        remedy=remedy,
        detail=traceback.format_exc(),
    )


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
