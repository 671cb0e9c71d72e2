"""A view of checkpoints under the model's names: the language model as if it were stored alone, and
every expert with matrices of its own. Imports no torch.

Qwen3.5 is stored beside a vision tower. Where a layer's experts are one tensor, its first axis is
the expert, and of `gate_up_proj` the gate's rows come first.
"""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RowRange, RowsView, expert_rows

_VISION = re.compile(r"(model\.)?visual\.")
_LANGUAGE = re.compile(r"^(model\.language_model|language_model\.model)\.")
_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """Raises CheckpointError for a tensor that cannot be a stack of experts."""
    ranges: dict[str, RowRange] = {}
    for stored, info in checkpoint.tensors.items():
        if _VISION.match(stored):
            continue
        name = _LANGUAGE.sub("model.", stored)
        if (stack := _STACK.fullmatch(name)) is None:
            ranges[name] = RowRange(stored)
            continue
        experts, matrix = stack.groups()
        parts = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
        ranges |= expert_rows(stored, info, experts, parts)
    return RowsView(checkpoint, ranges)
