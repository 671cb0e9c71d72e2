"""The type that a model computes in."""

from __future__ import annotations

import math
from collections import Counter
from typing import cast

from inferno.contracts import COMPUTE_DTYPES, Checkpoint, Device, DType
from inferno.errors import OptionError
from inferno.plan.decided import Decided

BFLOAT16_SINCE = (8, 0)
"""The first CUDA capability with instructions for bfloat16."""


def compute_dtype(wanted: str, checkpoint: Checkpoint) -> DType:
    """Return the requested dtype, else the config's, else that of most stored values: but not
    float16, which says how a file was written, not that the activations stay below 65504."""
    if wanted != "auto":
        return cast(DType, wanted)
    if (declared := declared_dtype(checkpoint)) is not None:
        return declared
    stored = stored_dtype(checkpoint)
    return "bfloat16" if stored == "float16" else stored


def declared_dtype(checkpoint: Checkpoint) -> DType | None:
    """Return the config's dtype, if it is one to compute in."""
    config = checkpoint.config
    declared = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return declared if declared in COMPUTE_DTYPES else None


def stored_dtype(checkpoint: Checkpoint) -> DType:
    """Return the dtype of most values that are stored plainly."""
    sizes = Counter[DType]()
    for info in checkpoint.tensors.values():
        if info.dtype in COMPUTE_DTYPES:
            sizes[info.dtype] += math.prod(info.shape)
    return sizes.most_common(1)[0][0] if sizes else "bfloat16"


def on_device(dtype: DType, wanted: str, device: Device) -> Decided[DType]:
    """Return the dtype, or float16 where a GPU has no instructions for bfloat16, with a note on the
    range of float16. Raises OptionError if bfloat16 was asked for by name there."""
    capability = device.capability
    old = device.kind == "cuda" and capability is not None and capability < BFLOAT16_SINCE
    if not old or capability is None:
        narrow = "float16 overflows beyond 65504, and gives NaN then; --dtype bfloat16 does not"
        return Decided(dtype, notes=(narrow,) if dtype == "float16" else ())
    if dtype == "float32":
        return Decided(dtype)
    has = f"{device} has compute capability {capability[0]}.{capability[1]}, bfloat16 needs 8.0"
    if dtype == wanted == "bfloat16":
        raise OptionError(has, "Use --dtype float16, or float32 where its range is too small.")
    note = f"{has}: float16 is used, which overflows beyond 65504; --dtype float32 does not"
    return Decided("float16", notes=(note,))
