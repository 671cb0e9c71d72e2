"""The default name of a model."""

from __future__ import annotations

import re
from pathlib import Path

_PART = re.compile(r"-\d{5}-of-\d{5}$")


def model_name(ref: str) -> str:
    """Return the default name of the model of a reference: a file's name without its
    ending, a folder's, or the reference itself: a hub id."""
    path = Path(ref).expanduser()
    if not path.exists():
        return ref
    if path.is_file():
        return _PART.sub("", path.stem)
    path = path.resolve()
    if path.parent.name == "snapshots":  # of the hub's cache, named by a hash
        return path.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
    return path.name
