"""A view of Gemma 4's mixtures, which store a layer's experts as one tensor. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Checkpoint, per_expert, with_head


def of_text(checkpoint: Checkpoint) -> Checkpoint:
    """View a language model that is stored alone."""
    return per_expert(with_head(checkpoint))
