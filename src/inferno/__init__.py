"""inferno: a small kernel that runs and serves large language models. Everything else is a
plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferno.errors import InfernoError
    from inferno.hookspecs import hookimpl
    from inferno.llm import LLM, AsyncLLM, CompletionOutput, RequestOutput
    from inferno.request.sampling_params import SamplingParams

__version__ = "1.0.0"

_LAZY = {
    "SamplingParams": "inferno.request.sampling_params",
    "LLM": "inferno.llm",
    "AsyncLLM": "inferno.llm",
    "RequestOutput": "inferno.llm",
    "CompletionOutput": "inferno.llm",
    "InfernoError": "inferno.errors",
    "hookimpl": "inferno.hookspecs",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: commands launch their engine process before they import anything else,
    # and the Python API needs torch.
    if name not in _LAZY:
        raise AttributeError(f"module 'inferno' has no attribute {name!r}")
    from importlib import import_module

    if name == "LLM":  # it imports torch: begin beside the other imports
        import_module("inferno.host").load_torch_library()
    return getattr(import_module(_LAZY[name]), name)


__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "InfernoError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "hookimpl",
]
