"""A plan together with what it names: declarations, config and checkpoint, opened once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import cached_property
from types import TracebackType
from typing import Self

import attrs
from attrs import field, frozen

from inferno.catalog import Catalog, load_catalog
from inferno.catalog.offers import T
from inferno.contracts import (
    Architecture,
    AttentionBackend,
    BlockStore,
    CachePolicy,
    ChatFormat,
    Checkpoint,
    Communicator,
    EventSink,
    Executor,
    GrammarProvider,
    KernelProvider,
    LayerSpan,
    LogitsProcessor,
    ModelConfig,
    OutputFormat,
    Proposer,
    QuantScheme,
    QueuePolicy,
    RequestField,
    Sandbox,
    SessionKeeper,
    Shard,
    TextAssets,
)
from inferno.errors import CheckpointError, PluginError, UnsupportedError
from inferno.plan.chat_formats import chat_need, choose_chat_format
from inferno.plan.composite import Composite, composed, reopened
from inferno.plan.devices import Machine, agree_on_device
from inferno.plan.encoder_file import open_stored
from inferno.plan.origins import agree_on_origins
from inferno.plan.plan import Plan
from inferno.plan.stored import adapted, unused_tensors
from inferno.plan.turns import in_turns


@frozen(kw_only=True)
class Parts:
    """The declarations that a plan chose, by name. Where two distributions offer a name, the plan
    says which one's."""

    architecture: Architecture
    cache_policy: CachePolicy
    queue_policy: QueuePolicy
    schemes: Mapping[str, QuantScheme]
    """Including in-situ quantization's."""
    attention: Mapping[str, AttentionBackend]
    kernels: Mapping[str, KernelProvider]
    block_store: BlockStore | None = None
    """Where blocks are kept beside the cache's memory, if the plan keeps any."""
    link_store: BlockStore | None = None
    """What links this instance to others, if anything does."""
    event_sink: EventSink | None = None
    """Where events of the cache are published, if they are."""
    session_keeper: SessionKeeper | None = None
    """What keeps the blocks of sessions, if anything does."""
    executor: Executor | None = None
    """What starts the ranks but the first, if there are others."""
    launcher: Executor | None = None
    """What starts the other machines' processes, if anything does."""
    sandbox: Sandbox | None = None
    """What confines the processes, if anything does."""
    proposer: Proposer | None = None
    """Of drafts, if the plan speculates."""
    chat_format: ChatFormat | None = None
    """None: all output is content."""
    catalog: Catalog = attrs.field(eq=False, repr=False)
    """The installed plugins, for a choice that depends on a caller's chat template."""
    grammars: Mapping[str, GrammarProvider] = field(factory=dict)
    """By kind of grammar."""
    logits_processors: Mapping[str, LogitsProcessor] = field(factory=dict)
    """Those that requests may name."""
    request_fields: Mapping[str, RequestField] = field(factory=dict)
    """Fields of request bodies that plugins understand."""

    @classmethod
    def of(cls, plan: Plan, catalog: Catalog) -> Parts:
        """Look up every choice of the plan, once. Raises the catalog's error for one that is not
        installed."""

        def chosen(kind: type[T], *labels: str) -> dict[str, T]:
            return {
                each.name: catalog.named(kind, each.name, each.distribution).item
                for each in plan.chosen
                if each.kind in labels
            }

        [architecture] = chosen(Architecture, "architecture").values()
        compilers = chosen(GrammarProvider, "grammars")
        [cache_policy] = chosen(CachePolicy, "cache policy").values()
        [queue_policy] = chosen(QueuePolicy, "queue policy").values()
        stages = 1 if plan.ranks is None else plan.ranks.stages
        return cls(
            architecture=architecture,
            cache_policy=cache_policy,
            queue_policy=in_turns(queue_policy, stages),
            schemes=chosen(QuantScheme, "scheme", "in-situ scheme"),
            attention=chosen(AttentionBackend, "attention"),
            kernels=chosen(KernelProvider, "kernels"),
            block_store=next(iter(chosen(BlockStore, "block store").values()), None),
            link_store=next(iter(chosen(BlockStore, "link").values()), None),
            event_sink=next(iter(chosen(EventSink, "event sink").values()), None),
            session_keeper=next(iter(chosen(SessionKeeper, "session keeper").values()), None),
            executor=next(iter(chosen(Executor, "executor").values()), None),
            launcher=next(iter(chosen(Executor, "machines").values()), None),
            sandbox=next(iter(chosen(Sandbox, "sandbox").values()), None),
            proposer=next(iter(chosen(Proposer, "proposer").values()), None),
            chat_format=next(iter(chosen(ChatFormat, "chat format").values()), None),
            catalog=catalog,
            logits_processors=chosen(LogitsProcessor, "logits processor"),
            request_fields=chosen(RequestField, "request field"),
            grammars={use.kind: compilers[use.name] for use in plan.grammars},
        )


@frozen(kw_only=True)
class Opened:
    """A plan with all that loading needs. `open_model` makes it, or `reopen` from a plan. Close it
    afterwards."""

    plan: Plan
    parts: Parts
    config: ModelConfig
    checkpoint: Checkpoint
    """As the architecture sees it (`adapted`)."""
    draft: Opened | None = None
    """The draft model, if the plan has one."""
    assets: TextAssets | None = None
    """What `text` returns, if it was read already."""
    updated: str = ""
    """What tells the model's weights from those of its files, if they were updated since."""
    rank: int = 0
    """Which of the plan's ranks loads it."""
    communicator: Communicator | None = attrs.field(default=None, eq=False, repr=False)
    """How that rank exchanges tensors with the others, if there are any."""

    @property
    def shard(self) -> Shard:
        """How the rank shares matrices with the others, or an engine its experts."""
        ranks = self.plan.ranks
        if ranks is None:
            return Shard() if self.plan.dealt is None else self.plan.dealt.shard
        return attrs.evolve(ranks.shard, rank=self.rank % ranks.shard.ranks)

    @property
    def span(self) -> LayerSpan | None:
        """The layers that the rank has; None: all."""
        ranks = self.plan.ranks
        if ranks is None or not ranks.pipeline:
            return None
        return ranks.pipeline[ranks.stage_of(self.rank)].span

    def text(self) -> TextAssets:
        """Return the checkpoint's tokenizer files, with the architecture's chat template if it has
        none. What was read once can be had after `close` too."""
        return self._text

    @cached_property
    def _text(self) -> TextAssets:
        return self.assets or text_assets(self.checkpoint, self.parts.architecture)

    def chat_format(self, template: str | None = None) -> OutputFormat | None:
        """Build the plan's chat format; None if all output is content. A caller's `template`
        replaces the checkpoint's, and the format is chosen by it. Raises ValueError if the
        checkpoint's own description of its format is wrong."""
        need = chat_need(self.text(), self.plan.architecture, template)
        if template is None or self.plan.chat_format.asked:
            chosen = self.parts.chat_format
        else:
            offers = choose_chat_format(self.parts.catalog, need).offers
            chosen = next((offer.item for _, offer in offers), None)
        return None if chosen is None else chosen.build(need)

    def vocabularies(self) -> list[tuple[str, Checkpoint]]:
        """Return the other checkpoints whose tokens must be the model's, with a name for each: the
        draft model, and those that matrices with a row for each token are taken from."""
        others = []
        if self.draft is not None:
            others.append((f"the draft model {self.draft.plan.ref}", self.draft.checkpoint))
        if isinstance(self.checkpoint, Composite):
            given = zip(self.plan.overrides, self.checkpoint.overrides, strict=True)
            others += [(use.ref, override.checkpoint) for use, override in given if use.tokens]
        return others

    def close(self) -> None:
        """Close the checkpoints. Loaded weights stay valid."""
        self.checkpoint.close()
        if self.draft is not None:
            self.draft.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_text(plan: Plan, parts: Parts) -> TextAssets:
    """Open the plan's checkpoint, and return what `Opened.text` does. Raises CheckpointError."""
    checkpoint = adapted(open_stored(plan, parts.catalog), parts.architecture)
    with closing(checkpoint):
        return text_assets(checkpoint, parts.architecture)


def text_assets(checkpoint: Checkpoint, architecture: Architecture) -> TextAssets:
    """Return a checkpoint's tokenizer files, with the architecture's chat template if it has
    none."""
    assets = checkpoint.text()
    template = assets.chat_template or assets.tokenizer_config.get("chat_template")
    return attrs.evolve(assets, chat_template=template or architecture.chat_template)


def reopen(
    plan: Plan,
    catalog: Catalog | None = None,
    machine: Machine | None = None,
    *,
    update: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint,
    updated: str = "",
) -> Opened:
    """Open a plan made by another process or read from a file, or by this one: `update` then
    changes its checkpoint as it is stored. Raises PluginError if the installed packages differ from
    those it was made with, DeviceError if its device is not here, CheckpointError if its model is
    another one now."""
    catalog = catalog or load_catalog(disable=plan.disable, only=plan.only)
    agree(plan, catalog)
    agree_on_device(plan.device, machine)
    agree_on_origins(plan, catalog)
    parts = Parts.of(plan, catalog)
    checkpoint = adapted(update(open_stored(plan, catalog)), parts.architecture)
    with ExitStack() as on_error:
        on_error.callback(checkpoint.close)
        config = model_config(parts.architecture, checkpoint)
        overrides = reopened(plan.overrides, catalog, on_error)
        checkpoint = composed(checkpoint, overrides, parts.architecture, unused_tensors(config))
        draft = None
        if plan.speculation is not None and plan.speculation.draft is not None:
            draft = reopen(plan.speculation.draft, catalog)
        on_error.pop_all()
    return Opened(
        plan=plan,
        parts=parts,
        config=config,
        checkpoint=checkpoint,
        draft=draft,
        updated=updated,
    )


def agree(plan: Plan, catalog: Catalog) -> None:
    """Raise PluginError if this environment lacks distributions of the plan."""
    here = {f"{p.distribution} {p.version}" for p in catalog.plugins if not p.disabled}
    missing = sorted({f"{c.distribution} {c.version}" for c in plan.chosen} - here)
    if missing:
        raise PluginError(
            f"the plan was made with {', '.join(missing)}; "
            f"this environment has {', '.join(sorted(here))}",
            "Install the same versions, or make a new plan: `inferno explain REF --lock`.",
        )


_MISREAD = LookupError, TypeError, ValueError, AttributeError, ArithmeticError


def model_config(architecture: Architecture, checkpoint: Checkpoint) -> ModelConfig:
    """Return the checkpoint's config, parsed by the architecture. Raises CheckpointError."""
    try:
        config = architecture.config(checkpoint.config)
    except _MISREAD as error:  # of parts that are not read by `read_config`
        raise CheckpointError(
            f"{architecture.name} cannot read config.json: {error!r}", "Check the file."
        ) from error
    if not isinstance(config, ModelConfig):
        raise UnsupportedError(
            f"{architecture.name}: its config lacks attributes of contracts.ModelConfig",
            "Upgrade the plugin.",
        )
    return config
