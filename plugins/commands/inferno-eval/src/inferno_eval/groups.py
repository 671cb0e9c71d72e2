"""Groups of a model's modules, whose share in the divergence is measured separately."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

BY = ("layers", "modules", "none")
"""Kinds of groups: consecutive layers, all modules of one name, or none."""


@frozen
class Group:
    """Modules, by the patterns of their paths."""

    name: str
    patterns: tuple[str, ...]


def groups_of(paths: Iterable[str], by: str, count: int) -> list[Group]:
    """Group the modules that hold a matrix.

    `layers`: consecutive layers make up to `count` groups, as equal as possible; modules outside of
    layers are groups by themselves. `modules`: those with the same name in all layers are a group.
    """
    layers: dict[str, None] = {}
    names: dict[str, tuple[str, ...]] = {}
    others: dict[str, None] = {}
    for path in paths:
        if (layer := _layer_of(path)) is None:
            others[path] = None
        else:
            layers[layer] = None
            name = path.rpartition(".")[2]
            names[name] = (f"{layer.rpartition('.')[0]}.*.{name}",)
    result: list[Group] = []
    if by == "layers":
        result = [_group(part) for part in _split(list(layers), count)]
    elif by == "modules":
        result = [Group(name, patterns) for name, patterns in names.items()]
    return [*result, *(Group(path, (path,)) for path in others)] if by != "none" else []


def _layer_of(path: str) -> str | None:
    """Return the path of the layer that a module belongs to: up to the first number."""
    parts = path.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    return None if number is None else ".".join(parts[: number + 1])


def _split(layers: Sequence[str], count: int) -> list[Sequence[str]]:
    count = min(count, len(layers))
    ends = [len(layers) * i // count for i in range(count + 1)] if count else [0]
    return [layers[start:stop] for start, stop in zip(ends, ends[1:], strict=False)]


def _group(layers: Sequence[str]) -> Group:
    first, last = layers[0], layers[-1].rpartition(".")[2]
    name = first if len(layers) == 1 else f"{first} to {last}"
    return Group(name, tuple(f"{layer}.*" for layer in layers))
