"""Matrices that a conversion would round a second time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from inferno.errors import OptionError
from inferno.plan.isq import counted, rounded_twice
from inferno_convert.source import DenseView


def check_requantized(
    view: DenseView, layouts: Mapping[str, str], to: str, *, allowed: bool
) -> Iterable[str]:
    """Return a note on quantized matrices that become another layout; raise OptionError unless
    that is `allowed`. `layouts` are what matrices become, by name."""
    again = Counter[str]()
    for name, layout in layouts.items():
        if (matrix := view.quantized.get(name)) is None:
            continue
        old_layout = matrix.scheme.holds(matrix.stored, "float32").layout
        dtypes = {info.dtype for info in matrix.stored.parts.values()}
        # Eight bits of floating point are what some models are published in.
        copied = old_layout == layout and not view.changes.get(name)
        if not copied and not any(dtype.startswith("float8") for dtype in dtypes):
            again[old_layout or matrix.scheme.name] += 1
    if not again:
        return ()
    most_first = dict(again.most_common())
    if not allowed:
        raise OptionError(
            f"matrices of this checkpoint are quantized already ({counted(most_first)}), and {to} "
            "would round them a second time: both errors add up, and more bits bring nothing back",
            "Convert the original checkpoint. Without it: --requantize, as for --isq when a model "
            "is loaded.",
        )
    return (rounded_twice(most_first),)
