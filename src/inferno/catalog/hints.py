"""Which distribution of ours has what: for the `pip install` line of something that is not
installed. Written by `docs/generate.py` from the plugins' own declarations; holds names only."""

from __future__ import annotations

import json
from importlib.resources import files


def install_hint(architecture: str) -> str:
    """For a name of `config.json`'s "architectures", or of a GGUF file's `general.architecture`;
    empty where none has it."""
    distribution = json.loads(
        files("inferno.catalog").joinpath("index.json").read_text(encoding="utf-8")
    ).get(architecture)
    return "" if distribution is None else f"`pip install {distribution}`."
