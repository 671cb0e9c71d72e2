"""`inferno.lock`: a plan written down by `explain --lock`, and run again, unchanged, by `serve
--locked`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferno.errors import OptionError
from inferno.plan import Plan, plan_from_json, plan_to_json

LOCK = "inferno.lock"
"""In the current directory."""


def write(plan: Plan) -> Path:
    path = Path(LOCK)
    path.write_text(plan_to_json(plan) + "\n", encoding="utf-8")
    return path


def read(ref: str | None, values: Mapping[str, Any]) -> Plan:
    """The locked plan. It stands as it is: options beside it are an error, and so is another
    model."""
    given = [name for name, value in values.items() if value not in (None, ())]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise OptionError(
            f"--locked and {flags} exclude each other",
            "`inferno explain --lock` makes another plan.",
        )
    try:
        plan = plan_from_json(Path(LOCK).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OptionError(
            f"There is no {LOCK} here", "`inferno explain REF --lock` writes one."
        ) from None
    if ref is not None and ref != plan.ref:
        raise OptionError(
            f"{LOCK} is for {plan.ref}, not for {ref}", f"`inferno explain {ref} --lock` makes one."
        )
    return plan
