"""The hooks: every question that the kernel asks a plugin, once, at start-up.

Hooks declare; the kernel decides. Each takes no argument and returns a list of frozen declarations
(`inferno.contracts`); `inferno.catalog` collects them by name. No hook is called after start-up or
by the engine loop, and none imports torch: declarations name their heavy parts as
`"package.module:name"`.

Each hook is the method of a Protocol, which a plugin's module satisfies by a function of that name.
With `plugin: ProvidesSources = inferno_mine` in a test, a type checker finds a misspelt name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast, overload

import pluggy

if TYPE_CHECKING:
    from inferno.contracts import (
        Architecture,
        AttentionBackend,
        CachePolicy,
        ChatFormat,
        CheckpointFormat,
        GrammarProvider,
        Hint,
        KernelProvider,
        LogitsProcessor,
        Proposer,
        QuantScheme,
        RequestField,
        Source,
        Writer,
    )

hookspec = pluggy.HookspecMarker("inferno")
hookimpl = cast("HookImpl", pluggy.HookimplMarker("inferno"))
"""Marks a plugin's function as an implementation of the hook of its name, or of the hook that
`specname` names. Plugins import it as `inferno.hookimpl`."""

API_VERSIONS: dict[str, tuple[int, int]] = {
    "inferno_architectures": (1, 1),
    "inferno_checkpoint_formats": (1, 1),
    "inferno_quant_schemes": (1, 2),
    "inferno_kernels": (1, 1),
    "inferno_attention_backends": (1, 1),
    "inferno_cache_policies": (1, 1),
    "inferno_proposers": (1, 1),
    "inferno_chat_formats": (1, 1),
    "inferno_grammars": (1, 1),
    "inferno_logits_processors": (1, 1),
    "inferno_request_fields": (1, 1),
    "inferno_sources": (1, 1),
    "inferno_writers": (1, 1),
    "inferno_hints": (1, 1),
}
"""The oldest and newest supported version of each hook's contract: the current one and the one
before. A declaration with another `api_version` is set aside with a remedy; the rest of its plugin
is kept."""


class ProvidesArchitectures(Protocol):
    @hookspec
    def inferno_architectures(self) -> list[Architecture]:
        """Model architectures, each named as in `config.json`'s "architectures"."""
        ...


class ProvidesCheckpointFormats(Protocol):
    @hookspec
    def inferno_checkpoint_formats(self) -> list[CheckpointFormat]:
        """Formats of whole checkpoints on disk: safetensors, GGUF."""
        ...


class ProvidesQuantSchemes(Protocol):
    @hookspec
    def inferno_quant_schemes(self) -> list[QuantScheme]:
        """Quantization schemes of stored matrices: dense, Q8_0, GPTQ, AWQ."""
        ...


class ProvidesKernels(Protocol):
    @hookspec
    def inferno_kernels(self) -> list[KernelProvider]:
        """Faster implementations of the ops that `inferno.nn` computes with torch: matrix products,
        norms, activations."""
        ...


class ProvidesAttentionBackends(Protocol):
    @hookspec
    def inferno_attention_backends(self) -> list[AttentionBackend]:
        """Implementations of paged attention, each with the cache layout it reads."""
        ...


class ProvidesCachePolicies(Protocol):
    @hookspec
    def inferno_cache_policies(self) -> list[CachePolicy]:
        """Prefix caches, which decide which full blocks to cache and evict: none, LRU."""
        ...


class ProvidesProposers(Protocol):
    @hookspec
    def inferno_proposers(self) -> list[Proposer]:
        """Proposers of draft tokens for speculative decoding: n-gram lookup, a draft model."""
        ...


class ProvidesChatFormats(Protocol):
    @hookspec
    def inferno_chat_formats(self) -> list[ChatFormat]:
        """Chat formats: how models write reasoning and tool calls."""
        ...


class ProvidesGrammars(Protocol):
    @hookspec
    def inferno_grammars(self) -> list[GrammarProvider]:
        """Compilers of grammars, which hold outputs to JSON schemas, regular expressions and other
        grammars."""
        ...


class ProvidesLogitsProcessors(Protocol):
    @hookspec
    def inferno_logits_processors(self) -> list[LogitsProcessor]:
        """Logits processors, which requests name and which change their logits before each draw."""
        ...


class ProvidesRequestFields(Protocol):
    @hookspec
    def inferno_request_fields(self) -> list[RequestField]:
        """Fields of request bodies, each with what it changes in its request."""
        ...


class ProvidesSources(Protocol):
    @hookspec
    def inferno_sources(self) -> list[Source]:
        """Places where model references are looked up: this machine, a hub, a package."""
        ...


class ProvidesWriters(Protocol):
    @hookspec
    def inferno_writers(self) -> list[Writer]:
        """Formats and schemes that checkpoints can be converted to: safetensors, GPTQ, q4_k."""
        ...


class ProvidesHints(Protocol):
    @hookspec
    def inferno_hints(self) -> list[Hint]:
        """Which distributions provide what is not installed, for the remedies of errors."""
        ...


PROTOCOLS: tuple[type, ...] = (
    ProvidesArchitectures,
    ProvidesCheckpointFormats,
    ProvidesQuantSchemes,
    ProvidesKernels,
    ProvidesAttentionBackends,
    ProvidesCachePolicies,
    ProvidesProposers,
    ProvidesChatFormats,
    ProvidesGrammars,
    ProvidesLogitsProcessors,
    ProvidesRequestFields,
    ProvidesSources,
    ProvidesWriters,
    ProvidesHints,
)
HOOKS: Mapping[str, Callable[..., object]] = {
    name: function
    for protocol in PROTOCOLS
    for name, function in vars(protocol).items()
    if name.startswith("inferno_")
}
"""Every hook by name."""

if TYPE_CHECKING:
    _D = TypeVar(
        "_D",
        Architecture,
        AttentionBackend,
        CachePolicy,
        ChatFormat,
        CheckpointFormat,
        GrammarProvider,
        Hint,
        KernelProvider,
        LogitsProcessor,
        Proposer,
        QuantScheme,
        RequestField,
        Source,
        Writer,
    )
    _Hook = Callable[[], list[_D]]
    _Mark = Callable[[_Hook[_D]], _Hook[_D]]

    class HookImpl(Protocol):
        """The type of `inferno.hookimpl`: a marked function returns a list of declarations, of the
        hook named by `specname` if given."""

        @overload
        def __call__(self, function: _Hook[_D], /) -> _Hook[_D]: ...
        @overload
        def __call__(
            self, *, specname: Literal["inferno_architectures"]
        ) -> _Mark[Architecture]: ...
        @overload
        def __call__(
            self, *, specname: Literal["inferno_checkpoint_formats"]
        ) -> _Mark[CheckpointFormat]: ...
        @overload
        def __call__(self, *, specname: Literal["inferno_quant_schemes"]) -> _Mark[QuantScheme]: ...
        @overload
        def __call__(self, *, specname: Literal["inferno_kernels"]) -> _Mark[KernelProvider]: ...
        @overload
        def __call__(
            self, *, specname: Literal["inferno_attention_backends"]
        ) -> _Mark[AttentionBackend]: ...
        @overload
        def __call__(
            self, *, specname: Literal["inferno_cache_policies"]
        ) -> _Mark[CachePolicy]: ...
        @overload
        def __call__(self, *, specname: Literal["inferno_proposers"]) -> _Mark[Proposer]: ...
        @overload
        def __call__(self, *, specname: Literal["inferno_chat_formats"]) -> _Mark[ChatFormat]: ...
        @overload
        def __call__(self, *, specname: Literal["inferno_grammars"]) -> _Mark[GrammarProvider]: ...
        @overload
        def __call__(
            self, *, specname: Literal["inferno_logits_processors"]
        ) -> _Mark[LogitsProcessor]: ...
        @overload
        def __call__(
            self, *, specname: Literal["inferno_request_fields"]
        ) -> _Mark[RequestField]: ...
        @overload
        def __call__(self, *, specname: Literal["inferno_sources"]) -> _Mark[Source]: ...
        @overload
        def __call__(self, *, specname: Literal["inferno_writers"]) -> _Mark[Writer]: ...
        @overload
        def __call__(self, *, specname: Literal["inferno_hints"]) -> _Mark[Hint]: ...
