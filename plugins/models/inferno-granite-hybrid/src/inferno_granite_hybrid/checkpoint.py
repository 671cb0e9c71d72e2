"""A view of checkpoints in which every expert has matrices of its own. Imports no torch.

A layer's experts are stored as one tensor, whose first axis is the expert; of `input_linear` the
gate's rows come first.
"""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RowRange, RowsView, expert_rows

_STACK = re.compile(r"(.*\.block_sparse_moe)\.(input_linear|output_linear)\.weight")
_ROUTER = re.compile(r"(.*\.block_sparse_moe\.router)\.layer\.weight")


def per_expert(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the model's names. Raises CheckpointError for a tensor that cannot be a
    stack of experts."""
    ranges: dict[str, RowRange] = {}
    for stored, info in checkpoint.tensors.items():
        if (stack := _STACK.fullmatch(stored)) is None:
            ranges[_ROUTER.sub(r"\1.weight", stored)] = RowRange(stored)
            continue
        block, matrix = stack.groups()
        parts = ("gate_proj", "up_proj") if matrix == "input_linear" else ("down_proj",)
        ranges |= expert_rows(stored, info, f"{block}.experts", parts)
    return RowsView(checkpoint, ranges)
