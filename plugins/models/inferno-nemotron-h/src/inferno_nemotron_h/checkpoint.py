"""A view of checkpoints under the names of those that are published: what has a backbone. Imports
no torch."""

from __future__ import annotations

from inferno.contracts import Checkpoint, RenamedView

_BODY, _OTHER = "backbone.", "model."


def published_names(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, under those names if it has transformers 5's."""
    names = checkpoint.tensors
    if any(name.startswith(_BODY) for name in names):
        return checkpoint
    return RenamedView(checkpoint, {_published(name): name for name in names})


def _published(name: str) -> str:
    return _BODY + name.removeprefix(_OTHER) if name.startswith(_OTHER) else name
