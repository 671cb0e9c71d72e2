"""A view of Llama 4's checkpoints, which store a layer's experts as one tensor, in which each
expert has its own matrices. Imports no torch.

Its first axis is the expert; a matrix has the model's rows as columns, and of `gate_up_proj` those
of the gate come first. Quantized checkpoints store each expert's matrices.
"""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RowRange, RowsView, expert_rows, with_head

_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")
_MODULES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def per_expert(checkpoint: Checkpoint) -> Checkpoint:
    """View the checkpoint with matrices for each expert, or return it if it has them already.
    Raises CheckpointError for a tensor that cannot be a stack of experts."""
    ranges: dict[str, RowRange] = {}
    for name, info in checkpoint.tensors.items():
        if (stack := _STACK.fullmatch(name)) is None:
            ranges[name] = RowRange(name)
        else:
            ranges |= expert_rows(name, info, stack[1], _MODULES[stack[2]], transposed=True)
    changed = any(name != rows.stored for name, rows in ranges.items())
    return RowsView(checkpoint, ranges) if changed else checkpoint


def of_text(checkpoint: Checkpoint) -> Checkpoint:
    """The same of a language model that is stored alone."""
    return per_expert(with_head(checkpoint))
