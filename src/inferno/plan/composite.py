"""A checkpoint made of checkpoints: modules taken from other models by pattern (`--override`)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from inferno.catalog import Catalog, architecture_name
from inferno.contracts import (
    Architecture,
    Checkpoint,
    CheckpointView,
    FetchOptions,
    StoredMatrix,
    TensorInfo,
)
from inferno.errors import CheckpointError, OptionError, UnsupportedError
from inferno.plan.decided import Decided, refusals_of
from inferno.plan.origins import origin_of
from inferno.plan.plan import OverrideUse, by_pattern
from inferno.plan.stored import adapted, matrix_of, modules_of

if TYPE_CHECKING:
    from torch import Tensor

_Modules = Mapping[str, Mapping[str, TensorInfo]]
"""Stored tensors by module path and part."""


@frozen(eq=False)
class Override:
    """A checkpoint, and the pattern of the modules that are taken from it."""

    use: OverrideUse
    checkpoint: Checkpoint


@frozen(eq=False)
class Composite(CheckpointView):
    """A checkpoint, some of whose modules are taken from others. Its config and its tokenizer are
    the first one's. Closing it closes all of them."""

    overrides: tuple[Override, ...]
    taken: Mapping[str, Override]
    """By the path of each module that is taken from another checkpoint."""
    tensors: Mapping[str, TensorInfo]

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of every checkpoint, the first one's first; none if one has none."""
        each = [tuple(getattr(c, "files", ())) for c in self._checkpoints]
        return tuple(dict.fromkeys(file for files in each for file in files)) if all(each) else ()

    def read(self, name: str) -> Tensor:
        return self.source_of(name.rpartition(".")[0]).read(name)

    def source_of(self, path: str) -> Checkpoint:
        """Return the checkpoint that has the module at this path."""
        override = self.taken.get(path)
        return self.checkpoint if override is None else override.checkpoint

    def close(self) -> None:
        with ExitStack() as stack:
            for checkpoint in self._checkpoints:
                stack.callback(checkpoint.close)

    @property
    def _checkpoints(self) -> list[Checkpoint]:
        """Each once, the first one first."""
        others = (override.checkpoint for override in self.overrides)
        return list({id(each): each for each in (self.checkpoint, *others)}.values())


def quant_config_of(checkpoint: Checkpoint, path: str) -> Mapping[str, Any]:
    """Return the `quantization_config` that describes the module at this path: that of the
    checkpoint it is taken from. Raises CheckpointError if it is not an object."""
    source = checkpoint.source_of(path) if isinstance(checkpoint, Composite) else checkpoint
    config = source.config.get("quantization_config") or {}
    if not isinstance(config, Mapping):
        raise CheckpointError(
            f"config.json: quantization_config is {config!r}", "It must be an object."
        )
    return config


def arrangement(checkpoint: Checkpoint) -> list[list[Any]]:
    """Return what tells composites of the same `files` apart: for each pattern the numbers of its
    files among them, and their config. Empty for other checkpoints."""
    if not isinstance(checkpoint, Composite):
        return []
    number = {file: i for i, file in enumerate(checkpoint.files)}
    return [
        [
            override.use.pattern,
            [number.get(file) for file in getattr(override.checkpoint, "files", ())],
            dict(override.checkpoint.config),
        ]
        for override in checkpoint.overrides
    ]


def open_overrides(
    texts: Sequence[str], catalog: Catalog, fetch: FetchOptions, on_error: ExitStack
) -> Decided[list[Override]]:
    """Open the checkpoint of each `PATTERN=REF`, a reference only once. Raises OptionError, and
    what fetching and opening do."""
    opened: dict[str, Override] = {}
    overrides: list[Override] = []
    decisions: list[Decided[Any]] = []
    for pattern, ref in map(parsed, texts):
        if ref not in opened:
            source = catalog.source_of(ref)
            path = source.item.fetch(ref, evolve(fetch, revision=None))
            format, checkpoint = catalog.open(path)
            on_error.callback(checkpoint.close)
            decisions += [Decided.by("source", source), Decided.by("format", format)]
            use = OverrideUse(
                pattern=pattern,
                ref=ref,
                path=str(path),
                format=format.item.name,
                origin=origin_of(source.item, ref),
            )
            opened[ref] = Override(use, checkpoint)
        overrides.append(evolve(opened[ref], use=evolve(opened[ref].use, pattern=pattern)))
    offers = tuple(offer for decision in decisions for offer in decision.offers)
    return Decided(overrides, offers, refusals_of(decisions))


def parsed(override: str) -> tuple[str, str]:
    """Split `PATTERN=REF`. Raises OptionError if it is not one."""
    pattern, _, ref = override.partition("=")
    if not (pattern and ref):
        raise OptionError(
            f"the override {override!r} is not PATTERN=REF",
            "Write it as 'model.layers.0.*=other.gguf': `*` matches anything.",
        )
    return pattern, ref


def reopened(uses: Sequence[OverrideUse], catalog: Catalog, on_error: ExitStack) -> list[Override]:
    """Open the checkpoints of a plan's overrides again."""
    opened: dict[str, Checkpoint] = {}
    for path in dict.fromkeys(use.path for use in uses):
        opened[path] = catalog.open(Path(path))[1]
        on_error.callback(opened[path].close)
    return [Override(use, opened[use.path]) for use in uses]


def composed(
    main: Checkpoint,
    overrides: Sequence[Override],
    architecture: Architecture,
    unused: tuple[str, ...] = (),
) -> Checkpoint:
    """Return `main` with the modules that match in place of its own; where several patterns match,
    the last one counts. `main` is as the architecture sees it, the others are as stored; `unused`
    are patterns of tensors that the model does not read. Raises OptionError for a pattern that
    matches nothing, CheckpointError if a checkpoint is of another architecture, or lacks a module
    that it is to replace."""
    if not overrides:
        return main
    seen: dict[int, Checkpoint] = {}
    for override in overrides:
        if (key := id(override.checkpoint)) not in seen:
            seen[key] = _alike(override, main, architecture)
    stored = {key: modules_of(checkpoint.tensors, unused) for key, checkpoint in seen.items()}
    replaceable, modules = modules_of(main.tensors, unused), modules_of(main.tensors)
    taken: dict[str, Override] = {}
    given: list[Override] = []
    for override in overrides:
        key = id(override.checkpoint)
        given.append(evolve(override, checkpoint=seen[key]))
        for path in _matching(override.use, replaceable, stored[key]):
            taken[path], modules[path] = given[-1], stored[key][path]
    tensors = {_join(path, part): info for path, m in modules.items() for part, info in m.items()}
    return Composite(main, tuple(given), taken, tensors)


def _alike(override: Override, main: Checkpoint, architecture: Architecture) -> Checkpoint:
    """Return an override's checkpoint as the architecture sees it."""
    name = architecture_name(main.config)
    try:
        other = architecture_name(override.checkpoint.config)
        if other == name:
            return adapted(override.checkpoint, architecture)
    except CheckpointError as error:
        error.cause = f"{override.use.ref}: {error.cause}"
        raise
    raise CheckpointError(
        f"{override.use.ref} is a {other}: its modules cannot replace those of a {name}",
        "Override with a checkpoint of the same architecture.",
    )


def _matching(use: OverrideUse, ours: _Modules, theirs: _Modules) -> list[str]:
    """Return the paths of the model's modules that an override replaces."""
    paths = [path for path in ours if fnmatchcase(path, use.pattern)]
    if not paths:
        near = difflib.get_close_matches(use.pattern, ours, n=3, cutoff=0.3) or list(ours)[:3]
        raise OptionError(
            f"no module of the model matches {use.pattern!r}",
            f"Modules are named as {', '.join(near)}; `*` matches anything.",
        )
    lost = [path for path in paths if path not in theirs]
    lost += [path for path in theirs if path not in ours and fnmatchcase(path, use.pattern)]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        has, lacks = ("the model", use.ref) if lost[0] in ours else (use.ref, "the model")
        raise CheckpointError(
            f"{use.pattern!r} matches {lost[0]}{more}, which {has} has and {lacks} has not",
            "Narrow the pattern, or override with a checkpoint of the same model.",
        )
    return paths


def check_shapes(checkpoint: Checkpoint, catalog: Catalog, dtype: str) -> None:
    """Compare the modules of a composite with those that they replace. Raises CheckpointError for
    another shape. Judges by headers: where they do not tell the shape, or the scheme of what is
    replaced is not installed, the loader compares with the model."""
    if not isinstance(checkpoint, Composite):
        return
    ours, theirs = modules_of(checkpoint.checkpoint.tensors), modules_of(checkpoint.tensors)
    for path, override in checkpoint.taken.items():
        before = _shapes(catalog, checkpoint.checkpoint, path, ours[path], dtype)
        after = _shapes(catalog, override.checkpoint, path, theirs[path], dtype)
        for part in sorted(before.keys() & after.keys()):
            if before[part] != after[part]:
                raise CheckpointError(
                    f"{_join(path, part)} is {after[part]} in {override.use.ref}, and "
                    f"{before[part]} in the model",
                    "Narrow the pattern, or override with a checkpoint of the same model.",
                )


def _shapes(
    catalog: Catalog, checkpoint: Checkpoint, path: str, parts: Mapping[str, TensorInfo], dtype: str
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's tensors, by part; that of its matrix as `weight`."""
    matrix = matrix_of(parts)
    shapes = {part: info.shape for part, info in parts.items() if part not in matrix}
    if matrix:
        quant_config = quant_config_of(checkpoint, path)
        stored = StoredMatrix(path=path, parts=matrix, quant_config=quant_config)
        with suppress(UnsupportedError):
            whole = catalog.scheme_of(stored).item.holds(stored, dtype)
            shapes |= {"weight": whole.shape} if whole.shape is not None else {}
    return shapes


def override_uses(
    checkpoint: Checkpoint, schemes: Mapping[str, str], tokens: Collection[str]
) -> tuple[OverrideUse, ...]:
    """Return the plan's overrides. `schemes` has the scheme of every matrix by its module's path;
    `tokens` are the paths of those with a row for each token."""
    if not isinstance(checkpoint, Composite):
        return ()
    uses = []
    for override in checkpoint.overrides:
        paths = [path for path, each in checkpoint.taken.items() if each is override]
        replaced = {path: schemes[path] for path in paths if path in schemes}
        has_tokens = not replaced.keys().isdisjoint(tokens)
        count = len(paths)
        uses.append(
            evolve(override.use, count=count, schemes=by_pattern(replaced), tokens=has_tokens)
        )
    return tuple(uses)


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
