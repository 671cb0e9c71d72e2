"""Attention by torch's FlexAttention. Imports no torch until a model is loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import AttentionBackend
from inferno_flex import attention


@hookimpl
def inferno_attention_backends() -> list[AttentionBackend]:
    return [
        AttentionBackend(
            name=name,
            refuses=refuses,
            build=f"inferno_flex.attend:{build}",
            cache=attention.cache,
            features=frozenset({"sliding_window", "soft_cap", "value_dim", "latent_dim", "sinks"}),
            layout="token-major",
            priority=priority,
        )
        for name, build, refuses, priority in (
            ("flex", "eager", attention.refuses, -20),
            ("flex-compiled", "compiled", attention.refuses_compiled, -30),
        )
    ]
