"""A view of Llama 4's checkpoints, which store a layer's experts as one tensor: a matrix has the
model's rows as columns. Quantized checkpoints store each expert's matrices. Imports no torch.
"""

from __future__ import annotations

from inferno.contracts import Checkpoint, per_expert, with_head


def of_text(checkpoint: Checkpoint) -> Checkpoint:
    """View a language model that is stored alone."""
    return per_expert(with_head(checkpoint), transposed=True)
