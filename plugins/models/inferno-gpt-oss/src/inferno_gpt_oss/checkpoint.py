"""A view of gpt-oss checkpoints in which every expert has its own matrices. Imports no torch.

A layer's experts are stored as one tensor, with gate and up rows alternating; the first axis is the
expert. Dense ones are transposed, (E, I, O); those in MXFP4 are blocks (E, O, G, 16) and scales (E,
O, G).

Suffixes: E experts, O rows, I columns, G groups of 32 columns.
"""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RowRange, RowsView, expert_rows

_FUSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)(?:_(bias|blocks|scales))?")
_DIMS = {None: 3, "bias": 2, "blocks": 4, "scales": 3}
_MODULES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def per_expert(checkpoint: Checkpoint) -> Checkpoint:
    """View the checkpoint under the model's names, or return it if it has them already. Raises
    CheckpointError for a tensor that cannot be a stack of experts."""
    ranges: dict[str, RowRange] = {}
    for name, info in checkpoint.tensors.items():
        if (match := _FUSED.fullmatch(name)) is None:
            ranges[name] = RowRange(name)
            continue
        experts, matrix, part = match.groups()
        ranges |= expert_rows(
            name,
            info,
            experts,
            _MODULES[matrix],
            part=part or "weight",
            ndim=_DIMS[part],
            interleaved=True,
            transposed=part is None,
        )
    changed = any(name != rows.stored for name, rows in ranges.items())
    return RowsView(checkpoint, ranges) if changed else checkpoint
