"""What plugins provide: frozen declarations and the protocols behind them. No behaviour, no torch
at run time.

A declaration's callables may be given as `"package.module:name"`; they are imported when first
called, so that listing plugins costs nothing. Every declaration carries the `api_version` of its
hook (`hookspecs.HOOKS`); contracts grow by optional fields with defaults.

Names are imported from their modules on first use, so that a plugin with a command imports no more
than `Command`. `__init__.pyi` says which name is whose, to type checkers and to this module.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_MODULE_OF = {
    name: module
    for module, names in re.findall(
        r"^from (\S+) import (\([^)]*\)|.*)$",
        Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    for name in re.findall(r"\w+", names)
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
