"""What differs of two layouts, to say why blocks cannot be exchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_DERIVED = ("cache", "groups", "kernels")
"""What differs because other fields do: told last."""


def differences(theirs: str, ours: str) -> tuple[str, str]:
    """Return what differs of two layouts, shortened."""
    try:
        one, other = json.loads(theirs), json.loads(ours)
    except (ValueError, RecursionError):
        return repr(theirs[:80]), repr(ours[:80])
    if not isinstance(one, dict) or not isinstance(other, dict):
        return repr(theirs[:80]), repr(ours[:80])
    differ = [n for n in one.keys() | other.keys() if one.get(n) != other.get(n)]
    names = sorted(differ, key=lambda name: (name in _DERIVED, name))
    return _said(one, names), _said(other, names)


def _said(layout: Mapping[str, Any], names: list[str]) -> str:
    fields = (f"{name[:40]} {str(layout.get(name))[:60]!r}" for name in names[:8])
    return ", ".join(fields) or "another spelling"
