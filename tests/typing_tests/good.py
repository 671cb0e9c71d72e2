"""A plugin that mypy has nothing to say about."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture, Hint, KernelProvider, Source


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [Architecture(name="Good", config="good:config", build="good:build")]


@hookimpl
def inferno_hints() -> list[Hint]:
    return [Hint(kind="architecture", name="Better", distribution="inferno-better")]


@hookimpl(specname="inferno_sources")
def shelves() -> list[Source]:
    return []


@hookimpl(specname="inferno_kernels")
def kernels() -> list[KernelProvider]:
    return []
