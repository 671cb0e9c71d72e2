"""Chooses how many columns share a scale, so that few matrices stay dense."""

from __future__ import annotations

from attrs import evolve

from inferno.contracts import WriteOptions, Writer
from inferno_convert.folder import linear_shapes
from inferno_convert.source import Source


def in_groups(
    source: Source, writer: Writer, options: WriteOptions
) -> tuple[WriteOptions, tuple[str, ...]]:
    """Return the options with the size of groups that the user asked for, or with that of the
    writer's sizes which leaves the fewest matrices dense, the first of several; and what the user
    should know of it."""
    if not writer.groups or writer.encoding is None:
        return options, ()
    shapes = linear_shapes(source, source.by_modules())
    choice, usual = options.group, writer.groups[0]
    dense: dict[int, int] = {}
    for group in writer.groups if choice is None else (choice, *writer.groups):
        encoding = writer.encoding(evolve(options, group=group))
        parts = (encoding.parts(path, shape) for path, shape in shapes.items())
        dense[group] = sum(isinstance(part, str) for part in parts)
    best = min(dense, key=lambda group: dense[group])  # of several the first
    if choice is not None:
        if dense[best] == dense[choice]:
            return options, ()
        return options, (f"--group-size {best} leaves {dense[best]} matrices dense",)
    if best == usual:
        return evolve(options, group=usual), ()
    note = f"groups of {best} columns: with the usual {usual}, {dense[usual]} matrices stay dense"
    return evolve(options, group=best), (note,)
