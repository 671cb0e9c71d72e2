"""Attention over the paged cache and other kernels, in Triton. Imports neither torch nor triton
until a model is loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import GROUPED, LINEAR, AttentionBackend, KernelProvider
from inferno_triton import attention, kernels


@hookimpl
def inferno_attention_backends() -> list[AttentionBackend]:
    return [
        AttentionBackend(
            name="triton",
            refuses=attention.refuses,
            build="inferno_triton.attend:build",
            cache=attention.cache,
            captures_prompts=True,
            features=frozenset(
                {
                    "sliding_window",
                    "soft_cap",
                    "value_dim",
                    "latent_dim",
                    "sinks",
                    "cache_dtype",
                    "waves",
                }
            ),
            block_size=64,
            layout=attention.LAYOUT,
            priority=20,
        )
    ]


@hookimpl
def inferno_kernels() -> list[KernelProvider]:
    return [
        KernelProvider(
            name="triton",
            refuses=kernels.refuses,
            ops={
                LINEAR: "inferno_triton.linear:stack",
                GROUPED: "inferno_triton.experts:stack",
                "route": "inferno_triton.experts:route",
                "dispatch": "inferno_triton.experts:dispatch",
                "combine": "inferno_triton.experts:combine",
                "shrink": "inferno_triton.adapters:shrink",
                "expand": "inferno_triton.adapters:expand",
                "rms_norm": "inferno_triton.ops:rms_norm",
                "add_rms_norm": "inferno_triton.ops:add_rms_norm",
                "norm_rope": "inferno_triton.ops:norm_rope",
                "silu_mul": "inferno_triton.ops:silu_mul",
                "argmax": "inferno_triton.ops:argmax",
                "adjust": "inferno_triton.tokens:adjust",
                "draw": "inferno_triton.tokens:draw",
            },
            priority=10,
        )
    ]
