"""The engine: plan, run, commit, until nothing is left. Tokens in, tokens out; it knows no text.

`Engine` works in this process, `EngineClient` drives one in a process of its own. Importing the client loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferno.engine.client import EngineClient, TokenStream
    from inferno.engine.core import Engine

_LAZY = {"Engine": "core", "EngineClient": "client", "TokenStream": "client"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


__all__ = ["Engine", "EngineClient", "TokenStream"]
