"""A plugin that mypy has nothing to say about."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture, Hint, KernelNeed, KernelProvider, Source


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [Architecture(name="Good", config="good:config", build="good:build")]


@hookimpl
def inferno_hints() -> list[Hint]:
    return [Hint(kind="architecture", name="Better", distribution="inferno-better")]


@hookimpl
def inferno_sources() -> list[Source]:
    return []


@hookimpl
def inferno_kernels() -> list[KernelProvider]:
    return [KernelProvider(name="good", ops={"linear": "good:linear"}, refuses=refuses)]


def refuses(need: KernelNeed) -> str | None:
    if need.device.kind != "cuda":
        return f"it runs on CUDA devices, not on {need.device}"
    if need.dtype == "bfloat16" and (need.device.capability or (0, 0)) < (8, 0):
        return f"{need.device} has no bfloat16 matrix products: they need sm_80"
    return None
