"""Which distribution of the inferno project provides what: data for the remedies of errors."""

from __future__ import annotations

import json
from importlib.resources import files

from inferno import hookimpl
from inferno.contracts import Hint

XFORMERS = (
    "xFormers is retired as an attention backend, in vLLM as well. Leave the option out: the plan "
    "then chooses, and `inferno explain` says why."
)


@hookimpl
def inferno_hints() -> list[Hint]:
    text = files(__name__).joinpath("hints.json").read_text(encoding="utf-8")
    return [
        Hint(kind=kind, name=name, distribution=distribution)
        for kind, names in json.loads(text).items()
        for name, distribution in names.items()
    ] + [Hint(kind="attention", name="xformers", distribution="", remedy=XFORMERS)]
