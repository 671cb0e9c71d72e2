"""A view of checkpoints in which layers without experts have their published names. Imports no
torch."""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RenamedView

_DENSE = re.compile(r"\.block_sparse_moe\.(?=(?:gate|up|down)_proj\.)")
"""How transformers writes them."""


def published_names(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the model's names."""
    return RenamedView(checkpoint, {_DENSE.sub(".mlp.", name): name for name in checkpoint.tensors})
