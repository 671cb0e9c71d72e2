"""inferno: a small kernel that runs and serves large language models. Everything else is a
plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

__version__ = "1.0.0"

hookimpl = pluggy.HookimplMarker("inferno")
"""Marks a plugin function as an implementation of a hook in `inferno.hookspecs`."""

_LAZY = {
    "SamplingParams": "inferno.core.sampling_params",
    "LLM": "inferno.llm",
    "AsyncLLM": "inferno.llm",
    "RequestOutput": "inferno.llm",
    "CompletionOutput": "inferno.llm",
    "Engine": "inferno.compat",
    "EngineConfig": "inferno.compat",
    "Message": "inferno.compat",
}

if TYPE_CHECKING:
    from inferno.compat import Engine, EngineConfig, Message
    from inferno.core.sampling_params import SamplingParams
    from inferno.llm import LLM, AsyncLLM, CompletionOutput, RequestOutput


def __getattr__(name: str) -> Any:
    # Imported on first use: `import inferno` costs milliseconds, the Python API needs torch.
    if name not in _LAZY:
        raise AttributeError(f"module 'inferno' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Engine",
    "EngineConfig",
    "Message",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "hookimpl",
]
