"""A tiny demo model as package data, to try the engine with. Reference `demo`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from inferno import hookimpl
from inferno.contracts import FetchOptions, Source
from inferno.errors import OptionError


def path() -> Path:
    """The folder that holds config.json, model.safetensors and the tokenizer."""
    return Path(str(files(__name__) / "model"))


def fetch(ref: str, options: FetchOptions) -> Path:
    if options.revision:
        raise OptionError(
            f"{ref} is part of its package and has no revisions", "Leave --revision out."
        )
    return path()


@hookimpl
def inferno_sources() -> list[Source]:
    return [
        Source(
            name="demo",
            describe="the demo model, `demo`",
            matches=lambda ref: ref == "demo",
            fetch=fetch,
            list=lambda: ("demo",),
            priority=30,  # above local paths: a folder named demo is ./demo
        )
    ]
