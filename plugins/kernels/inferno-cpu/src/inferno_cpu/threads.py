"""Sets the number of threads of the kernels."""

from __future__ import annotations

import torch

from inferno_cpu import _native


def use_torch_threads() -> None:
    """Give the kernels as many threads as torch has; the loader has set these by the plan. Whatever
    binds a kernel to a model calls this: matrices that are packed now or read from disk, and
    attention."""
    _native.set_threads(torch.get_num_threads())
