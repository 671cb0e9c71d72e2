"""The hooks: every question the kernel asks a plugin, once, while it starts.

Hooks declare, the kernel decides. Each takes no argument and returns a list of frozen declarations
(`inferno.contracts`); `inferno.catalog` files them by name. No hook is called again after start-up,
none by the engine loop, and none imports torch: declarations name their heavy parts as
`"package.module:name"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from inferno.contracts import (
        Architecture,
        AttentionBackend,
        CachePolicy,
        CheckpointFormat,
        Hint,
        KernelProvider,
        QuantScheme,
        Source,
    )

hookspec = pluggy.HookspecMarker("inferno")

API_VERSIONS: dict[str, tuple[int, int]] = {
    "inferno_architectures": (1, 1),
    "inferno_checkpoint_formats": (1, 1),
    "inferno_quant_schemes": (1, 1),
    "inferno_kernels": (1, 1),
    "inferno_attention_backends": (1, 1),
    "inferno_cache_policies": (1, 1),
    "inferno_sources": (1, 1),
    "inferno_hints": (1, 1),
}
"""The oldest and the newest version of each hook's contract that is understood: the present one and
the one before. A declaration of another `api_version` is set aside, alone, with a remedy."""


@hookspec
def inferno_architectures() -> list[Architecture]:
    """Model architectures, each named as in `config.json`'s "architectures"."""
    raise NotImplementedError


@hookspec
def inferno_checkpoint_formats() -> list[CheckpointFormat]:
    """Ways a model lies on disk: safetensors, GGUF."""
    raise NotImplementedError


@hookspec
def inferno_quant_schemes() -> list[QuantScheme]:
    """Layouts of a stored matrix that a linear layer can compute with: dense, Q8_0, GPTQ, AWQ."""
    raise NotImplementedError


@hookspec
def inferno_kernels() -> list[KernelProvider]:
    """Faster implementations of the ops that `inferno.nn` computes with torch: matrix products,
    norms, activations."""
    raise NotImplementedError


@hookspec
def inferno_attention_backends() -> list[AttentionBackend]:
    """Implementations of paged attention, each with the cache layout it reads."""
    raise NotImplementedError


@hookspec
def inferno_cache_policies() -> list[CachePolicy]:
    """Which finished blocks to remember, find again and evict: none, LRU."""
    raise NotImplementedError


@hookspec
def inferno_sources() -> list[Source]:
    """Where a model reference is looked for: this machine, a hub, a package."""
    raise NotImplementedError


@hookspec
def inferno_hints() -> list[Hint]:
    """Which distribution provides what is not installed here: data for the remedies of errors."""
    raise NotImplementedError
