"""The demo model as package data: a tiny model that shows that the engine works. Reference
`demo`."""

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
            f"{ref} comes with its package: it has no revisions", "Leave --revision out."
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
            priority=30,  # above local paths: a folder that happens to be called demo is ./demo
        )
    ]
