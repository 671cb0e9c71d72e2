"""Where packed weights are kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from inferno.contracts import GROUPED, LINEAR, Checkpoint, Device
from inferno.plan.decided import Decided
from inferno.plan.kernel_use import KernelUse
from inferno.plan.options import Options


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return `inferno/packed` in the user's cache folder, which `XDG_CACHE_HOME` may name."""
    base = environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return cache / "inferno" / "packed"


def choose_folder(
    options: Options,
    environ: Mapping[str, str],
    device: Device,
    checkpoint: Checkpoint,
    kernels: Decided[tuple[KernelUse, ...]],
) -> str | None:
    """Return the folder of packed weights. None where none are kept: on other devices, for
    checkpoints that are not files, and without a provider that keeps any."""
    multiplying = {use.name for use in kernels.value if use.op in (LINEAR, GROUPED)}
    packs = any(o.item.packing is not None for _, o in kernels.offers if o.item.name in multiplying)
    if options.packed_cache == "none" or device.kind != "cpu":
        return None
    if not packs or not getattr(checkpoint, "files", ()):
        return None
    if options.packed_cache != "auto":
        return str(Path(options.packed_cache).expanduser().absolute())
    return str(default_folder(environ))
