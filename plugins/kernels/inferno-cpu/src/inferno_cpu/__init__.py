"""Native CPU kernels for inferno. Imports no torch until a model is loaded."""

from __future__ import annotations

import os
from importlib.util import find_spec

from inferno import hookimpl
from inferno.contracts import (
    COLLECTIVES,
    GROUPED,
    LINEAR,
    QUANTIZE,
    AttentionBackend,
    AttentionNeed,
    KernelNeed,
    KernelProvider,
    Packing,
)
from inferno_cpu import attention, layouts

_NOT_COMPILED = "its native module was not compiled: installing it needs a C++ compiler"


def refuses(need: KernelNeed) -> str | None:
    if need.device.kind != "cpu":
        return "it computes on the CPU only"
    if find_spec("inferno_cpu._native") is None:
        return _NOT_COMPILED
    if need.op == COLLECTIVES and not hasattr(os, "memfd_create"):
        return "ranks share memory on Linux only"
    if need.op == QUANTIZE:
        if need.layout in layouts.QUANTIZED:
            return None
        return f"it does not quantize to {need.layout}"
    if need.op not in (LINEAR, GROUPED) or need.layout in layouts.DTYPE_NUMBERS:
        return None
    if not layouts.known(need.layout):
        return f"it has no kernel for matrices stored as {need.layout}"
    return None if need.shape is None else layouts.refuses(need.layout, need.dtype, need.shape)


def rounds(need: KernelNeed) -> bool:
    """Whether rows of x become int8: w8a8 is defined so, and codes are decoded to floats."""
    packed = need.layout in (*layouts.LAYOUTS, *layouts.SYMMETRIC)
    return packed and not need.layout.startswith("w8a8")


def batch_invariant(need: KernelNeed) -> bool:
    """Of every op: work is divided among threads by rows and columns, and sums have one order."""
    return True


def refuses_attention(need: AttentionNeed) -> str | None:
    if need.device.kind == "cpu" and find_spec("inferno_cpu._native") is None:
        return _NOT_COMPILED
    return attention.refuses(need)


@hookimpl
def inferno_kernels() -> list[KernelProvider]:
    return [
        KernelProvider(
            name="cpu",
            refuses=refuses,
            ops={
                LINEAR: "inferno_cpu.linear:stack",
                GROUPED: "inferno_cpu.linear:stack",
                QUANTIZE: "inferno_cpu.quantize:quantize",
                COLLECTIVES: "inferno_cpu.ranks:SharedMemory",
                "rms_norm": "inferno_cpu.elementwise:rms_norm",
                "add_rms_norm": "inferno_cpu.elementwise:add_rms_norm",
                "norm_rope": "inferno_cpu.elementwise:norm_rope",
                "silu_mul": "inferno_cpu.elementwise:silu_mul",
                "add_layer_norm": "inferno_cpu.elementwise:add_layer_norm",
                "gelu": "inferno_cpu.elementwise:gelu",
                "gather": "inferno_cpu.elementwise:gather",
                "argmax": "inferno_cpu.elementwise:argmax",
                "route": "inferno_cpu.experts:route",
                "dispatch": "inferno_cpu.experts:dispatch",
                "combine": "inferno_cpu.experts:combine",
                "shrink": "inferno_cpu.adapters:shrink",
                "expand": "inferno_cpu.adapters:expand",
            },
            capture="inferno_cpu.capturing:capture",
            prepare="inferno_cpu.reserve:reserved",
            packing=Packing(
                version="inferno_cpu.packing:version",
                save="inferno_cpu.packing:save",
                load="inferno_cpu.packing:load",
                read="inferno_cpu.packing:read",
            ),
            level="inferno_cpu.level:level",
            rounds=rounds,
            batch_invariant=batch_invariant,
            priority=10,
        )
    ]


@hookimpl
def inferno_attention_backends() -> list[AttentionBackend]:
    return [
        AttentionBackend(
            name="cpu",
            refuses=refuses_attention,
            build="inferno_cpu.attend:build",
            cache=attention.cache,
            features=frozenset(
                {
                    "sliding_window",
                    "soft_cap",
                    "bidirectional",
                    "cache_dtype",
                    "waves",
                    "batch_invariant",
                }
            ),
            block_multiple=attention.BLOCK_MULTIPLE,
            priority=10,
        )
    ]
