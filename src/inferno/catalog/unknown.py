"""The error for a reference that no source has, with what may have been meant."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from inferno.errors import ModelNotFoundError

if TYPE_CHECKING:
    from inferno.contracts import Source

_PATH = re.compile(r"[./~]|.*[^/]/$|[A-Za-z]:\\")
_FILE = re.compile(r".+\.[A-Za-z]{2,12}")
_NAME = re.compile(r"[\w.-]+", re.ASCII)
_SHOWN = 3
_LONGEST = 400
"""Characters of a reference that an error shows."""


def no_model(ref: str, sources: Sequence[Source], hint: str) -> ModelNotFoundError:
    """Return the error for a reference that no source matches. `hint` is a sentence for the
    remedy, or empty."""
    known = sorted({name for source in sources for name in source.list()})
    path, ref = Path(os.path.expanduser(ref)), ref[:_LONGEST]
    if _PATH.match(ref) or (_FILE.fullmatch(ref) and os.sep not in ref):
        here = path.parent
        if not os.path.isdir(here):  # a `Path` raises for a name that is too long
            where = str(here)[:_LONGEST]
            return ModelNotFoundError(f"no such file: {ref}", f"There is no folder {where} either.")
        return ModelNotFoundError(
            f"no such file: {ref}", _meant(path.name, [*_names(here), *known]) or "Check the path."
        )
    looked = "; ".join(f"{source.name}: {source.describe}" for source in sources)
    shown = f" Known here: {', '.join(known)}." if known else ""
    meant = _meant(ref, [*known, *_names(Path())])
    if not meant and any(source.name == "hub" for source in sources) and _NAME.fullmatch(ref):
        meant = (
            f"A model of the hub has its owner in front, OWNER/{ref}: "
            f"https://huggingface.co/models?search={ref} finds it."
        )
    return ModelNotFoundError(
        f"no model {ref!r}", " ".join(filter(None, [meant, hint, f"Looked for {looked}.{shown}"]))
    )


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    return []


def _meant(name: str, known: Sequence[str]) -> str:
    """Return a question that names what is similar: spelt like it, or with it as a part."""
    spelt = {each.rpartition("/")[2].lower(): each for each in reversed(known)}
    near = [
        each
        for short, each in spelt.items()
        if len(name) > 3 and name.lower() in short and name.lower() != short
    ]
    close = difflib.get_close_matches(name.lower(), list(spelt), n=_SHOWN, cutoff=0.7)
    guesses = list(dict.fromkeys([*(spelt[each] for each in close), *near]))[:_SHOWN]
    return f"Did you mean {' or '.join(guesses)}?" if guesses else ""
