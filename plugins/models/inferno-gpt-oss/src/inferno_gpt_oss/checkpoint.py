"""A view of gpt-oss checkpoints in which every expert has its own matrices. Imports no torch.

A layer's experts are stored as one tensor, with gate and up rows alternating; the first axis is the
expert. Dense ones are transposed, (E, I, O); those in MXFP4 are blocks (E, O, G, 16) and scales (E,
O, G).

Suffixes: E experts, O rows, I columns, G groups of 32 columns.
"""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RowRange, RowsView
from inferno.errors import CheckpointError

_FUSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)(?:_(bias|blocks|scales))?")
_DIMS = {None: 3, "bias": 2, "blocks": 4, "scales": 3}
_ROWS = {
    "gate_up_proj": {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)},
    "down_proj": {"down_proj": slice(None)},
}


def per_expert(checkpoint: Checkpoint) -> Checkpoint:
    """View the checkpoint under the model's names, or return it if it has them already. Raises
    CheckpointError for a tensor that cannot be a stack of experts."""
    ranges: dict[str, RowRange] = {}
    for name, info in checkpoint.tensors.items():
        if (match := _FUSED.fullmatch(name)) is None:
            ranges[name] = RowRange(name)
            continue
        experts, matrix, part = match.groups()
        transposed, own = part is None, _ROWS[matrix]
        if len(info.shape) != _DIMS[part] or info.shape[-1 if transposed else 1] % len(own):
            raise CheckpointError(
                f"{name} of shape {info.shape} is not a stack of experts",
                "The checkpoint is damaged: download it again.",
            )
        for expert in range(info.shape[0]):
            for module, rows in own.items():
                path = f"{experts}.{expert}.{module}.{part or 'weight'}"
                ranges[path] = RowRange(name, expert, rows, transposed)
    changed = any(name != rows.stored for name, rows in ranges.items())
    return RowsView(checkpoint, ranges) if changed else checkpoint
