"""The hooks: every question that the kernel asks a plugin, once, at start-up.

Hooks declare; the kernel decides. Each takes no argument and returns a list of frozen declarations
(`inferno.contracts`); `inferno.catalog` collects them by name. No hook is called after start-up or
by the engine loop, and none imports torch: declarations name their heavy parts as
`"package.module:name"`.

Each hook is the method of a Protocol, which a plugin's module satisfies by a function of that name.
The Protocol is the only place that names a hook: all else is derived from it, the type of its
declarations from the type that it returns.
With `plugin: ProvidesSources = inferno_mine` in a test, a type checker finds a misspelt name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, cast

import pluggy

if TYPE_CHECKING:
    from inferno.contracts import (
        AdapterFormat,
        Architecture,
        AttentionBackend,
        BlockStore,
        CachePolicy,
        ChatFormat,
        CheckpointFormat,
        Command,
        Declaration,
        Endpoints,
        EventSink,
        Executor,
        GrammarProvider,
        Hint,
        KernelProvider,
        LogitsProcessor,
        Proposer,
        QuantScheme,
        QueuePolicy,
        RecordStore,
        RequestField,
        Sandbox,
        SessionKeeper,
        Source,
        Writer,
    )
    from inferno.errors import MissingKind

hookspec = pluggy.HookspecMarker("inferno")
hookimpl = cast("HookImpl", pluggy.HookimplMarker("inferno"))
"""Marks a plugin's function as an implementation of the hook of its name. Plugins import it as
`inferno.hookimpl`."""

ENGINE, COMMANDS, ENDPOINTS = "inferno", "inferno.commands", "inferno.endpoints"
"""Groups of entry points: what runs models; what the command line lists; what only a server has.
Each is loaded where it is needed, so that none slows the other's start."""
F = TypeVar("F", bound="Callable[..., object]")


class Hook(NamedTuple):
    """A hook, as its Protocol declares it."""

    function: Callable[..., object]
    noun: str
    """What one of its declarations is called in messages."""
    versions: tuple[int, int]
    """The oldest and newest supported version of its contract: the current one and the one before.
    A declaration with another `api_version` is set aside with a remedy; the rest of its plugin is
    kept."""
    hinted: MissingKind | None
    """As what hints (`contracts.Hint`) name its declarations, if users refer to them by name."""
    group: str
    """The group of entry points whose modules implement it."""


def _hook(
    noun: str,
    *,
    versions: tuple[int, int] = (1, 1),
    hinted: MissingKind | None = None,
    group: str = ENGINE,
) -> Callable[[F], F]:
    def mark(function: F) -> F:
        vars(function)["declared"] = Hook(function, noun, versions, hinted, group)
        return hookspec(function)

    return mark


class ProvidesArchitectures(Protocol):
    @_hook("architecture", hinted="architecture")
    def inferno_architectures(self) -> list[Architecture]:
        """Model architectures, each named as in `config.json`'s "architectures"."""
        ...


class ProvidesCheckpointFormats(Protocol):
    @_hook("checkpoint format", hinted="format")
    def inferno_checkpoint_formats(self) -> list[CheckpointFormat]:
        """Formats of whole checkpoints on disk: safetensors, GGUF."""
        ...


class ProvidesQuantSchemes(Protocol):
    @_hook("quantization scheme", hinted="scheme", versions=(1, 2))
    def inferno_quant_schemes(self) -> list[QuantScheme]:
        """Quantization schemes of stored matrices: dense, Q8_0, GPTQ, AWQ."""
        ...


class ProvidesKernels(Protocol):
    @_hook("kernel provider")
    def inferno_kernels(self) -> list[KernelProvider]:
        """Faster implementations of what `inferno.ops` computes with torch: matrix products, norms,
        activations."""
        ...


class ProvidesAttentionBackends(Protocol):
    @_hook("attention backend", hinted="attention")
    def inferno_attention_backends(self) -> list[AttentionBackend]:
        """Implementations of paged attention, each with the cache layout it reads."""
        ...


class ProvidesCachePolicies(Protocol):
    @_hook("cache policy", hinted="cache policy", versions=(1, 2))
    def inferno_cache_policies(self) -> list[CachePolicy]:
        """Prefix caches, which decide which full blocks to cache and evict: none, LRU."""
        ...


class ProvidesQueuePolicies(Protocol):
    @_hook("queue policy", hinted="queue policy")
    def inferno_queue_policies(self) -> list[QueuePolicy]:
        """Orders of requests: first come, first served, or fair among API keys."""
        ...


class ProvidesBlockStores(Protocol):
    @_hook("block store")
    def inferno_block_stores(self) -> list[BlockStore]:
        """Stores of blocks, which keep what leaves the cache's memory: in host memory, on disk."""
        ...


class ProvidesEventSinks(Protocol):
    @_hook("event sink")
    def inferno_event_sinks(self) -> list[EventSink]:
        """Where events of the cache are published: over ZeroMQ, to a file."""
        ...


class ProvidesSessionKeepers(Protocol):
    @_hook("session keeper")
    def inferno_session_keepers(self) -> list[SessionKeeper]:
        """Keepers of sessions, which pin the blocks that a conversation may come back to."""
        ...


class ProvidesProposers(Protocol):
    @_hook("proposer")
    def inferno_proposers(self) -> list[Proposer]:
        """Proposers of draft tokens for speculative decoding: n-gram lookup, a draft model."""
        ...


class ProvidesChatFormats(Protocol):
    @_hook("chat format", hinted="chat format")
    def inferno_chat_formats(self) -> list[ChatFormat]:
        """Chat formats: how models write reasoning and tool calls."""
        ...


class ProvidesGrammars(Protocol):
    @_hook("grammar provider")
    def inferno_grammars(self) -> list[GrammarProvider]:
        """Compilers of grammars, which hold outputs to JSON schemas, regular expressions and other
        grammars."""
        ...


class ProvidesLogitsProcessors(Protocol):
    @_hook("logits processor")
    def inferno_logits_processors(self) -> list[LogitsProcessor]:
        """Logits processors, which requests name and which change their logits before each draw."""
        ...


class ProvidesRequestFields(Protocol):
    @_hook("request field")
    def inferno_request_fields(self) -> list[RequestField]:
        """Fields of request bodies, each with what it changes in its request."""
        ...


class ProvidesExecutors(Protocol):
    @_hook("executor")
    def inferno_executors(self) -> list[Executor]:
        """Ways to start the processes of an engine's ranks: on this machine, on others."""
        ...


class ProvidesSandboxes(Protocol):
    @_hook("sandbox", hinted="sandbox")
    def inferno_sandboxes(self) -> list[Sandbox]:
        """Sandboxes for processes that run models which are not trusted: Linux's Landlock."""
        ...


class ProvidesSources(Protocol):
    @_hook("source")
    def inferno_sources(self) -> list[Source]:
        """Places where model references are looked up: this machine, a hub, a package."""
        ...


class ProvidesAdapterFormats(Protocol):
    @_hook("adapter format")
    def inferno_adapter_formats(self) -> list[AdapterFormat]:
        """Formats of low-rank adapters on disk: PEFT, GGUF."""
        ...


class ProvidesWriters(Protocol):
    @_hook("conversion target")
    def inferno_writers(self) -> list[Writer]:
        """Formats and schemes that checkpoints can be converted to: safetensors, GPTQ, q4_k."""
        ...


class ProvidesHints(Protocol):
    @_hook("hint")
    def inferno_hints(self) -> list[Hint]:
        """Which distributions provide what is not installed, for the remedies of errors."""
        ...


class ProvidesCommands(Protocol):
    @_hook("command", hinted="command", group=COMMANDS)
    def inferno_commands(self) -> list[Command]:
        """Commands of the command line, in a module of the entry-point group `inferno.commands`."""
        ...


class ProvidesEndpoints(Protocol):
    @_hook("endpoints", group=ENDPOINTS)
    def inferno_endpoints(self) -> list[Endpoints]:
        """HTTP endpoints of the server, in a module of the entry-point group
        `inferno.endpoints`."""
        ...


class ProvidesStores(Protocol):
    @_hook("store", hinted="store", group=ENDPOINTS)
    def inferno_stores(self) -> list[RecordStore]:
        """Databases for what a server keeps: SQLite, PostgreSQL. In a module of the entry-point
        group `inferno.endpoints`."""
        ...


HOOKS: Mapping[str, Hook] = {
    name: function.declared
    for protocol in list(vars().values())
    if isinstance(protocol, type)
    for name, function in vars(protocol).items()
    if hasattr(function, "declared")
}
"""Every hook by name."""

if TYPE_CHECKING:
    _D = TypeVar("_D", bound=Declaration)

    class HookImpl(Protocol):
        """The type of `inferno.hookimpl`: a marked function returns a list of declarations."""

        def __call__(self, function: Callable[[], list[_D]], /) -> Callable[[], list[_D]]: ...
