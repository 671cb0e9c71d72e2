"""A view of Qwen3-VL's mixtures, which store a layer's experts as one tensor. Imports no torch.

Its first axis is the expert; of `gate_up_proj`, the gate's rows come first. Checkpoints have the
model's rows as columns, but for some that were converted.
"""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RowRange, RowsView, expert_rows

_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")
_MODULES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def per_expert(checkpoint: Checkpoint) -> Checkpoint:
    """View the checkpoint with matrices for each expert, or return it if it has them already.
    Raises CheckpointError for a tensor that cannot be a stack of experts."""
    stacks = {name: match for name in checkpoint.tensors if (match := _STACK.fullmatch(name))}
    if not stacks:
        return checkpoint
    ranges = {name: RowRange(name) for name in checkpoint.tensors if name not in stacks}
    hidden = checkpoint.config.get("hidden_size")
    for name, match in stacks.items():
        info, (experts, matrix) = checkpoint.tensors[name], match.groups()
        inputs, outputs = (1, 2) if matrix == "gate_up_proj" else (2, 1)
        axes = dict(enumerate(info.shape))
        turned = axes.get(outputs) == hidden and axes.get(inputs) != hidden
        ranges |= expert_rows(name, info, experts, _MODULES[matrix], transposed=not turned)
    return RowsView(checkpoint, ranges)
