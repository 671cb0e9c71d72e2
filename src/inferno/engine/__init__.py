"""The engine: plan, run, commit, until nothing is left. Tokens in, tokens out; it knows no text.

`Engine` works in this process, `EngineClient` drives one in a process of its own. Importing the
client loads no torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferno.engine.client import EngineClient, TokenStream
    from inferno.engine.core import Engine

# torch's threads wait for each other in a loop, of some milliseconds unless told otherwise, and
# hundreds of times in a step. Where something else runs on the machine, that is who they keep from
# the core that their own peer needs: a step takes ten times as long. After some 0.4 ms they sleep,
# and a quiet machine hardly notices. Read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

_LAZY = {"Engine": "core", "EngineClient": "client", "TokenStream": "client"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


__all__ = ["Engine", "EngineClient", "TokenStream"]
