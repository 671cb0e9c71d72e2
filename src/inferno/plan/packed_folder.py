"""Where packed weights are kept if no option says so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return `inferno/packed` in the user's cache folder, which `XDG_CACHE_HOME` may name."""
    base = environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return cache / "inferno" / "packed"
