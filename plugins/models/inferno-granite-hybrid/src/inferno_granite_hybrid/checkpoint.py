"""A view of checkpoints in which every expert has matrices of its own. Imports no torch.

A layer's experts are stored as one tensor, whose first axis is the expert; of `input_linear` the
gate's rows come first.
"""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RowRange, RowsView
from inferno.errors import CheckpointError

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
        if len(info.shape) != 3 or info.shape[1] % len(parts):
            raise CheckpointError(
                f"{stored} of shape {info.shape} is not a stack of experts",
                "The checkpoint is damaged: download it again.",
            )
        size = info.shape[1] // len(parts)
        for expert in range(info.shape[0]):
            for i, part in enumerate(parts):
                rows = slice(i * size, (i + 1) * size)
                ranges[f"{block}.experts.{expert}.{part}.weight"] = RowRange(stored, expert, rows)
    return RowsView(checkpoint, ranges)
