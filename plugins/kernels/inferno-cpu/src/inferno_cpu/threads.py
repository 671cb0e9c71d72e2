"""The number of threads of the kernels."""

from __future__ import annotations

import torch

from inferno_cpu import _native


def use_torch_threads() -> None:
    """Let the kernels run on as many threads as torch does, which the loader has set by the plan.
    Everything that a model can get from this provider calls it: matrices that are packed now or
    read from disk, and attention."""
    _native.set_threads(torch.get_num_threads())
