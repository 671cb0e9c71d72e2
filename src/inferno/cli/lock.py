"""`inferno.lock`: a plan that `explain --lock` writes and `serve --locked` runs unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferno.errors import OptionError
from inferno.plan import Plan, plan_from_json, plan_to_json

LOCK = "inferno.lock"
"""File name in the current directory."""


def write(plan: Plan) -> Path:
    path = Path(LOCK)
    path.write_text(plan_to_json(plan) + "\n", encoding="utf-8")
    return path


def read(ref: str | None, values: Mapping[str, Any]) -> Plan:
    """Read the locked plan. Raises OptionError if an option or another model is also given."""
    given = [name for name, value in values.items() if value not in (None, ())]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise OptionError(
            f"--locked cannot be combined with {flags}",
            "Write another plan with `inferno explain --lock`.",
        )
    try:
        plan = plan_from_json(Path(LOCK).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OptionError(
            f"There is no {LOCK} here", "Write one with `inferno explain REF --lock`."
        ) from None
    if ref is not None and ref != plan.ref:
        raise OptionError(
            f"{LOCK} is for {plan.ref}, not for {ref}",
            f"Write one with `inferno explain {ref} --lock`.",
        )
    return plan
