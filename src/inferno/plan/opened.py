"""A plan with everything it names at hand: declarations, config and checkpoint, opened once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
from attrs import frozen

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import (
    Architecture,
    AttentionBackend,
    CachePolicy,
    Checkpoint,
    KernelProvider,
    ModelConfig,
    QuantScheme,
    TextAssets,
)
from inferno.errors import CheckpointError, PluginError, UnsupportedError
from inferno.plan.plan import Plan


@frozen(kw_only=True)
class Parts:
    """The declarations a plan chose, by name."""

    architecture: Architecture
    cache_policy: CachePolicy
    schemes: Mapping[str, QuantScheme]
    """In-situ quantization's too."""
    attention: Mapping[str, AttentionBackend]
    kernels: Mapping[str, KernelProvider]

    @classmethod
    def of(cls, plan: Plan, catalog: Catalog) -> Parts:
        """Look every name of the plan up, once. Raises what the catalog raises for one that is not
        installed."""
        schemes = {use.name for use in plan.schemes} | ({plan.isq} if plan.isq else set())
        return cls(
            architecture=catalog.architecture(plan.architecture).item,
            cache_policy=catalog.named(CachePolicy, plan.cache_policy).item,
            schemes={name: catalog.named(QuantScheme, name).item for name in schemes},
            attention={
                use.name: catalog.named(AttentionBackend, use.name).item for use in plan.attention
            },
            kernels={
                name: catalog.named(KernelProvider, name).item
                for name in {use.name for use in plan.kernels}
            },
        )


@frozen(kw_only=True)
class Opened:
    """What is loaded from: made by `open_model`, or from a plan by `reopen`. Close it after."""

    plan: Plan
    parts: Parts
    config: ModelConfig
    checkpoint: Checkpoint
    """As the architecture sees it (`adapted`)."""

    def text(self) -> TextAssets:
        """The checkpoint's tokenizer files, with the architecture's chat template where it has
        none."""
        assets = self.checkpoint.text()
        found = assets.chat_template or assets.tokenizer_config.get("chat_template")
        return attrs.evolve(assets, chat_template=found or self.parts.architecture.chat_template)

    def close(self) -> None:
        """Close the checkpoint. What was loaded stays."""
        self.checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def reopen(plan: Plan, catalog: Catalog | None = None) -> Opened:
    """Open a plan made elsewhere: by another process, or written down. Raises PluginError when the
    installed packages are not those it was made of."""
    catalog = catalog or load_catalog(disable=plan.disable, only=plan.only)
    agree(plan, catalog)
    parts = Parts.of(plan, catalog)
    checkpoint = adapted(catalog.open(Path(plan.path))[1], parts.architecture)
    try:
        config = model_config(parts.architecture, checkpoint)
    except BaseException:
        checkpoint.close()
        raise
    return Opened(plan=plan, parts=parts, config=config, checkpoint=checkpoint)


def agree(plan: Plan, catalog: Catalog) -> None:
    """Raise PluginError naming each distribution of the plan that this environment lacks."""
    here = {f"{p.distribution} {p.version}" for p in catalog.plugins if not p.disabled}
    missing = sorted({f"{c.distribution} {c.version}" for c in plan.chosen} - here)
    if missing:
        raise PluginError(
            f"the plan was made with {', '.join(missing)}; "
            f"this environment has {', '.join(sorted(here))}",
            "Install the same versions, or make the plan anew.",
        )


def adapted(checkpoint: Checkpoint, architecture: Architecture) -> Checkpoint:
    """The checkpoint as the architecture sees it."""
    return architecture.adapt(checkpoint) if architecture.adapt is not None else checkpoint


def model_config(architecture: Architecture, checkpoint: Checkpoint) -> ModelConfig:
    """The checkpoint's config, read by the architecture. Raises CheckpointError."""
    try:
        config = architecture.config(checkpoint.config)
    except (KeyError, TypeError, ValueError) as error:  # a plugin less careful than `read_config`
        raise CheckpointError(
            f"{architecture.name} cannot read config.json: {error!r}", "Check the file."
        ) from error
    if not isinstance(config, ModelConfig):
        raise UnsupportedError(
            f"{architecture.name}: its config lacks attributes of contracts.ModelConfig",
            "Upgrade the plugin.",
        )
    return config
