"""The licence of a model: as it is given, or as the model says."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from inferno.contracts import Checkpoint
from inferno.errors import OptionError

TEXTS = ("LICENSE*", "LICENCE*", "COPYING*", "NOTICE*")
"""Names of files with the text of a licence."""
UNKNOWN = frozenset(["", "other", "unknown", "proprietary"])
"""What says that there is a licence, and not which."""

_CARD = re.compile(r"\A---\n(?P<fields>.*?\n)---\n(?P<text>.*)\Z", re.DOTALL)
_LICENCE = re.compile(r"^license:[ \t]*[\"']?(?P<name>[\w.-]+)", re.MULTILINE)


def licence_of(model: str, given: str | None, checkpoint: Checkpoint, folder: Path | None) -> str:
    """Return the SPDX expression of the model's licence: the given one, else the checkpoint's, else
    that of the model card in its folder. Raises OptionError if there is none, or if it is not an
    SPDX expression."""
    stated = str(getattr(checkpoint, "license", None) or (folder and _of_card(folder)) or "")
    if given is None and stated.lower() in UNKNOWN:
        raise OptionError(
            f"the licence of {model} is not known",
            "Find out whether you may pass the model on, and give its licence: "
            "--license Apache-2.0, or another SPDX expression.",
        )
    try:
        return str(canonicalize_license_expression(stated if given is None else given))
    except InvalidLicenseExpression as error:
        subject = f"the model's licence, {stated!r}," if given is None else f"--license {given!r}"
        raise OptionError(
            f"{subject} is not an SPDX expression",
            "Give one: --license Apache-2.0. For a licence of another kind give a name and the "
            "text: --license LicenseRef-NAME --license-file LICENSE.",
        ) from error


def split_card(text: str) -> tuple[str, str]:
    """Return a model card's fields, in YAML, and its text."""
    parts = _CARD.match(text)
    return (parts["fields"], parts["text"]) if parts else ("", text)


def _of_card(folder: Path) -> str:
    card = folder / "README.md"
    if not card.is_file():
        return ""
    match = _LICENCE.search(split_card(card.read_text(encoding="utf-8", errors="replace"))[0])
    return match["name"] if match else ""
