"""What differs of two layouts, to say why blocks cannot be exchanged."""

from __future__ import annotations

import json
import os

_DERIVED = ("cache", "groups", "kernels")
"""What differs because other fields do: told last."""
_MOST = 60
"""The most letters of a value that are shown."""


def differences(theirs: str, ours: str) -> tuple[str, str]:
    """Return what differs of two layouts, shortened."""
    try:
        one, other = json.loads(theirs), json.loads(ours)
    except (ValueError, RecursionError):
        return repr(theirs[:80]), repr(ours[:80])
    if not isinstance(one, dict) or not isinstance(other, dict):
        return repr(theirs[:80]), repr(ours[:80])
    differ = [n for n in one.keys() | other.keys() if one.get(n) != other.get(n)]
    names = sorted(differ, key=lambda name: (name in _DERIVED, name))[:8]
    values = [_apart(str(one.get(name)), str(other.get(name))) for name in names]
    fields = [(name[:40], *pair) for name, pair in zip(names, values, strict=True)]
    said = [", ".join(f"{name} {pair[end]!r}" for name, *pair in fields) for end in (0, 1)]
    return said[0] or "another spelling", said[1] or "another spelling"


def _apart(one: str, other: str) -> tuple[str, str]:
    """Return two values, shortened: long ones from a word before the first difference on."""
    if max(len(one), len(other)) > _MOST:
        start = len(os.path.commonprefix([one, other]))
        start = one.rfind(" ", 0, one.rfind(" ", 0, start) + 1) + 1
        one, other = ("…" * (start > 0) + each[start:] for each in (one, other))
    return one[:_MOST], other[:_MOST]
