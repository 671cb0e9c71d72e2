"""The layout of an engine's blocks, all that their bytes depend on, and how others' differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from itertools import repeat
from pathlib import Path
from typing import Any

from attrs import frozen

from inferno.contracts import StoredLayout
from inferno.errors import OptionError
from inferno.plan import Opened, Plan, plan_of_stage
from inferno.weights.packed.digest import computed, remembered, state

KEYS = "blake2b-128 of parent and int32 tokens"
"""How content keys are made (`keys`)."""
MADE_BY = ("architecture", "attention", "format", "in-situ scheme", "kernels", "proposer", "scheme")
"""Kinds of choices on which the bytes of blocks depend."""
MOST_SAID = 60
"""Letters of a value that are shown."""
_DEEP = 100
"""Lists and objects inside each other, in a layout that is not read: ours have a few."""
DERIVED = ("cache", "groups")
"""What differs because other fields do: told last."""


@frozen
class Difference:
    """A field of two layouts that is not the same."""

    field: str
    stored: str
    engine: str

    def __str__(self) -> str:
        return f"{self.field} {self.stored} instead of {self.engine}"


@frozen
class Compared:
    """What a folder has of one layout, and how that differs from an engine's."""

    stored: StoredLayout
    differences: tuple[Difference, ...]
    """None of them: its blocks are the engine's."""


@frozen
class Survey:
    """What a store's folder has."""

    layouts: tuple[Compared, ...]
    """Used last, first."""
    knows_files: bool
    """Whether the model's files were compared: not before they were hashed for this folder."""


def survey(opened: Opened) -> Survey | None:
    """Compare what is in the plan's folder with this engine's layout. Reads no blocks, and hashes
    nothing. None: there is no such folder, or its store cannot tell."""
    store, use = opened.parts.block_store, opened.plan.store
    if store is None or store.survey is None or use is None or use.folder is None:
        return None
    engine = known_layout(opened, Path(use.folder))
    folder = use.folder_of(None if opened.plan.ranks is None else opened.rank)
    entries = sorted(store.survey(folder), key=lambda each: -each.used)
    layouts = (Compared(each, differences(each.layout, engine)) for each in entries)
    return Survey(tuple(layouts), "files" in engine)


def differences(stored: str, engine: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the fields in which a stored layout is not the engine's: not `files`, if the engine's
    are not known."""
    try:
        theirs = json.loads(stored)
        if isinstance(theirs, dict) and not _is_deep(theirs):
            return tuple(_different_fields(theirs, engine))
    except (ValueError, RecursionError):
        pass
    return (Difference("layout", "that cannot be read", "this engine's"),)


def _is_deep(value: Any) -> bool:
    """Whether lists and objects are inside each other too often to be shown."""
    level = [value]
    for _ in range(_DEEP):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _different_fields(stored: Mapping[str, Any], engine: Mapping[str, Any]) -> Iterator[Difference]:
    names = sorted(stored.keys() | engine.keys(), key=lambda name: (name in DERIVED, name))
    for name in names:
        if name != "files" or name in engine:
            yield from _differing(name, stored.get(name), engine.get(name))


def _differing(name: str, stored: Any, engine: Any) -> Iterator[Difference]:
    if stored == engine:
        return
    if isinstance(stored, dict) and isinstance(engine, dict):
        for key in sorted(stored.keys() | engine.keys()):
            yield from _differing(f"{name} {key}", stored.get(key), engine.get(key))
        return
    if isinstance(stored, list) and isinstance(engine, list):
        only_stored = [each for each in stored if each not in engine]
        only_engine = [each for each in engine if each not in stored]
        if only_stored or only_engine:  # else their order differs
            stored, engine = only_stored, only_engine
    yield Difference(_said([name]), _said(stored), _said(engine))


def _said(value: Any) -> str:
    """Return a value as words for a terminal, whoever wrote it."""
    text = " ".join(_words(value)) or "none"
    text = "".join(letter if letter.isprintable() else "?" for letter in text[: MOST_SAID + 1])
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]}…"


def _words(value: Any) -> list[str]:
    """Return the scalars of a JSON value, and its names."""
    if isinstance(value, dict):
        return [word for name in sorted(value) for word in (name, *_words(value[name]))]
    if isinstance(value, list):
        return [word for each in value for word in _words(each)]
    return ["none" if value is None else str(value)] if value != "" else []


def layout_of(opened: Opened, plan: Plan, hashes: Sequence[str] | None) -> str:
    """Return all that the bytes of a block depend on, as a JSON object. `hashes` are those of the
    model's files, for blocks that others see than this process."""
    layout = _fields(opened, plan)
    if hashes is not None:
        layout["files"] = [*hashes]
    return json.dumps(layout, sort_keys=True, default=str)


def file_hashes(opened: Opened, plan: Plan) -> list[str] | None:
    """Return the hashes of the model's files, which the folder of the plan's store remembers, or
    another one; None if its blocks are of this process only. Raises OptionError if they cannot be
    read."""
    use = plan.store
    assert use is not None, "a plan with a store"
    folder = use.folder if use.hashes is None else use.hashes
    return None if folder is None else _hashes(opened, Path(folder))


def known_layout(opened: Opened, folder: Path) -> dict[str, Any]:
    """Return what is known of the layout without reading the model's files: without `files`, unless
    `folder` remembers their hashes."""
    plan = opened.plan
    if plan.ranks is not None:
        plan = plan_of_stage(plan, plan.ranks.stage_of(opened.rank))
    layout = _fields(opened, plan)
    files = tuple(getattr(opened.checkpoint, "files", ()))
    with suppress(OSError):
        if files and (hashes := remembered(files, folder)) is not None:
            layout["files"] = hashes
    return dict(json.loads(json.dumps(layout, default=str)))


def _fields(opened: Opened, plan: Plan) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "keys": KEYS,
        "inferno": metadata.version("inferno"),
        "dtype": plan.dtype,
        "block_size": plan.block_size,
        "groups": [
            {
                "kind": group.kind,
                "layers": list(group.layers),
                "window": group.window,
                "bytes": group.unit_bytes,
            }
            for group in plan.groups
        ],
        "cache": [
            [list(layers), {name: [*tensor.shape, tensor.dtype] for name, tensor in cache.items()}]
            for layers, cache in [
                *((use.layers, use.cache) for use in plan.attention),
                *((use.layers, use.cache) for use in plan.states),
            ]
        ],
        "made by": sorted(
            [c.kind, c.name, c.distribution, c.version] for c in plan.chosen if c.kind in MADE_BY
        ),
        "kernels": sorted([use.op, use.layout, use.name, use.level] for use in plan.kernels),
        "isq": None
        if plan.isq is None
        else [dict(plan.isq.modules), plan.isq.importance_sha256, plan.isq.requantized],
        "config": dict(opened.checkpoint.config),
        "overrides": [[use.pattern, use.ref] for use in plan.overrides],
        "device": plan.device.kind,
    }
    if plan.ranks is not None:
        layout["rank"] = [opened.rank, plan.ranks.count]
    if plan.batch_invariant:
        layout["batch_invariant"] = True
    if opened.updated:
        layout["updated"] = opened.updated
    return layout


def _hashes(opened: Opened, folder: Path) -> list[str]:
    files = tuple(getattr(opened.checkpoint, "files", ()))
    if not files:
        raise OptionError(
            f"{opened.plan.ref} is not made of files, by which its blocks are told from others'",
            "Leave out --kv-store, --prefill-for, --decode-with.",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        hashes = computed(files, folder, {file: state(file) for file in files}, repeat(None))
    except OSError as error:
        raise OptionError(
            f"the folder {folder}, given or for hashes of the model's files: "
            f"{error.strerror or error}",
            "Name one that can be written: --kv-store DIR, or --packed-cache DIR.",
        ) from error
    return hashes or []
