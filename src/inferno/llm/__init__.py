"""Text in, text out: `LLM` runs the engine in this process, `AsyncLLM` in a separate one. Imports
no torch."""

from __future__ import annotations

from inferno.llm.asynchronous import AsyncLLM
from inferno.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, TextDelta
from inferno.llm.prompts import Prompt
from inferno.llm.sync import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Logprob",
    "Prompt",
    "RequestMetrics",
    "RequestOutput",
    "TextDelta",
]
