"""Finds the installed plugins by entry point and calls each one's hooks once."""

from __future__ import annotations

import difflib
import importlib.metadata
import re
import traceback
from collections.abc import Collection, Iterable
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
    disabled, kept = set(disable), set(only)
    plugins: list[Plugin] = []
    offers: dict[str, list[Offer[Any]]] = {
        name: [] for name, hook in HOOKS.items() if hook.group in groups
    }
    seen: set[str] = set()
    for entry, distribution, version in _entry_points():
        names = {entry.name, distribution}
        seen |= names
        if entry.group not in groups:
            continue
        if names & disabled or (kept and not names & kept and entry.name != "builtin"):
            plugins.append(Plugin(entry.name, distribution, version, disabled=True))
            continue
        try:
            declared, set_aside = _ask(entry)
            offered = {
                hook: [
                    Offer(current(lazy.owned(item, distribution)), distribution) for item in items
                ]
                for hook, items in declared.items()
            }
        except Exception as error:  # a plugin's failure must not stop the others
            plugins.append(_broken(entry.name, distribution, version, error))
            continue
        for hook, found in offered.items():
            offers[hook] += found
        named = {hook: tuple(i.name for i in items) for hook, items in declared.items()}
        plugins.append(Plugin(entry.name, distribution, version, named, set_aside=set_aside))
    if unknown := (disabled | kept) - seen:
        raise OptionError(
            f"no plugin is called {', '.join(sorted(unknown))}",
            f"Installed: {', '.join(sorted(seen))}.",
        )
    return Catalog(tuple(plugins), {hook: tuple(found) for hook, found in offers.items()})


def _entry_points() -> list[tuple[importlib.metadata.EntryPoint, str, str]]:
    """Return every entry point of the groups with its distribution, in a fixed order. A
    distribution found twice counts once."""
    found: dict[tuple[str, str, str], tuple[importlib.metadata.EntryPoint, str, str]] = {}
    installed = importlib.metadata.entry_points()
    for entry in (entry for group in GROUPS for entry in installed.select(group=group)):
        if entry.dist is not None:
            metadata = entry.dist.metadata  # parsed anew at each access
            name = metadata["Name"]
            found.setdefault((name, entry.name, entry.group), (entry, name, metadata["Version"]))
    return [found[key] for key in sorted(found)]


_SPECS = {
    group: type("_Specs", (), {n: h.function for n, h in HOOKS.items() if h.group == group})
    for group in GROUPS
}
"""Every hook of a group in one class: pluggy looks at each attribute of what it is given, for each
manager."""


def _ask(
    entry: importlib.metadata.EntryPoint,
) -> tuple[dict[str, list[Any]], tuple[SetAside, ...]]:
    """Call every hook that the plugin implements. Returns its declarations by hook, and those of
    another API version. Each plugin has its own manager, so that its mistakes do not affect
    others."""
    manager = pluggy.PluginManager(ENGINE)
    manager.add_hookspecs(_SPECS[entry.group])
    manager.register(entry.load(), name=entry.name)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise _unknown(error, entry.group) from error
    declared: dict[str, list[Any]] = {}
    aside: list[SetAside] = []
    for hook in HOOKS:
        if HOOKS[hook].group != entry.group:
            continue
        kind = KINDS[hook]
        for items in getattr(manager.hook, hook)():
            held = declared.setdefault(hook, [])
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
                    held.append(item)
                else:
                    aside.append(other)
    return declared, tuple(aside)


def _unknown(error: pluggy.PluginValidationError, group: str) -> PluginError:
    """Name a function that is marked as a hook and is none of this group, and the hook or group
    that was probably meant."""
    found = re.search(r"'(\w+)'", str(error))
    name = found[1] if found else str(error)
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
