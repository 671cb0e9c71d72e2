"""What a catalog is made of: offers, the plugins they came from, choices and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from attrs import field, frozen

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

T = TypeVar(
    "T",
    Architecture,
    AttentionBackend,
    CachePolicy,
    CheckpointFormat,
    Hint,
    KernelProvider,
    QuantScheme,
    Source,
)

KINDS: Mapping[str, type] = {
    "inferno_architectures": Architecture,
    "inferno_checkpoint_formats": CheckpointFormat,
    "inferno_quant_schemes": QuantScheme,
    "inferno_kernels": KernelProvider,
    "inferno_attention_backends": AttentionBackend,
    "inferno_cache_policies": CachePolicy,
    "inferno_sources": Source,
    "inferno_hints": Hint,
}
"""What each hook returns a list of."""


@frozen
class Offer(Generic[T]):
    """A declaration, and the distribution it came from."""

    item: T
    distribution: str


@frozen
class SetAside:
    """A declaration that is not filed: it speaks another version of its hook's contract."""

    hook: str
    name: str
    reason: str
    remedy: str


@frozen
class Plugin:
    """One entry point of the group: loaded, disabled or broken."""

    name: str
    distribution: str
    version: str
    offers: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Hook name -> names of its declarations."""
    disabled: bool = False
    error: str = ""
    """Why it was set aside, in a line."""
    remedy: str = ""
    """What to do about `error`."""
    detail: str = ""
    """The traceback behind `error`."""
    set_aside: tuple[SetAside, ...] = ()
    """Declarations of a plugin that loads, each set aside alone."""

    @property
    def reason(self) -> str:
        """Why it, or a part of it, is set aside."""
        return self.error or "; ".join(s.reason for s in self.set_aside)

    def remedy_for(self, name: str) -> str:
        """What to do where this declaration of the plugin is needed."""
        return next((s.remedy for s in self.set_aside if s.name == name), self.remedy)


@frozen
class Refusal:
    """A candidate that was not chosen."""

    name: str
    distribution: str
    reason: str


@frozen
class Choice(Generic[T]):
    """What was chosen, and why the others were not."""

    offer: Offer[T]
    refusals: tuple[Refusal, ...] = ()

    @property
    def item(self) -> T:
        return self.offer.item
