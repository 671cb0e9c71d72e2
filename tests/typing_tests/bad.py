"""Plugins that mypy refuses: each line that ends in `# error: CODES` is one."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture, Device, Hint, KernelNeed, Source


@hookimpl  # error: type-var
def inferno_architectures() -> list[str]:
    return ["LlamaForCausalLM"]


@hookimpl  # error: arg-type
def inferno_kernels() -> str:
    return "cpu"


@hookimpl  # error: arg-type
def inferno_sources(ref: str) -> list[Source]:
    return []


@hookimpl(specname="inferno_sources")  # error: call-arg, call-arg
def sources() -> list[Source]:
    return []


architecture = Architecture(name="Bad", config="bad:config")  # error: call-arg
device = Device("gpu")  # error: arg-type
need = KernelNeed(op="linear", dtype="float32", device="cpu")  # error: arg-type
hint = Hint(kind="weather", name="rain", distribution="inferno-rain")  # error: arg-type


def refuses(need: KernelNeed) -> str | None:
    return None if need.device == "cpu" else "it runs on CPUs"  # error: comparison-overlap
