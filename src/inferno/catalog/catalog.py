"""The catalog: what the installed plugins offer, filed by name. The only caller of hooks.

Choice is one rule everywhere: what matches, does not refuse (with a reason), and has the highest
priority. A tie is an error that names both distributions. A plugin that does not import, or whose
offers break the contract, is set aside with its traceback; it is fatal only when something needs
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from inferno.catalog.offers import KINDS, Choice, Offer, Plugin, Refusal, T
from inferno.contracts import (
    Architecture,
    AttentionBackend,
    AttentionNeed,
    CachePolicy,
    Checkpoint,
    CheckpointFormat,
    Hint,
    KernelNeed,
    KernelProvider,
    QuantScheme,
    Source,
    TensorInfo,
)
from inferno.errors import (
    InfernoError,
    MissingKind,
    ModelNotFoundError,
    OptionError,
    PluginError,
    UnsupportedError,
)

ANY = "*"
"""The name of an architecture that is taken when none has the model's."""

_NOUNS: Mapping[type, str] = {
    Architecture: "architecture",
    CheckpointFormat: "checkpoint format",
    QuantScheme: "quantization scheme",
    KernelProvider: "kernel provider",
    AttentionBackend: "attention backend",
    CachePolicy: "cache policy",
    Source: "source",
    Hint: "hint",
}
_MISSING: Mapping[type, MissingKind] = {
    Architecture: "architecture",
    CheckpointFormat: "format",
    QuantScheme: "scheme",
    AttentionBackend: "attention",
    CachePolicy: "cache policy",
}
"""Kinds that a user names, and what hints call them."""


@frozen
class Catalog:
    """Everything on offer, by hook and then by name. A name that two distributions offer is kept
    twice: choosing it is the error, not having it installed."""

    plugins: tuple[Plugin, ...]
    offers: Mapping[str, tuple[Offer[Any], ...]]

    def of(self, hook: str) -> tuple[Offer[Any], ...]:
        return self.offers.get(hook, ())

    def named(self, kind: type[T], name: str) -> Offer[T]:
        """The declaration of that kind and name. Raises OptionError where there is none,
        PluginError where there are two."""
        [hook] = [hook for hook, declared in KINDS.items() if declared is kind]
        found = [o for o in self.of(hook) if o.item.name == name]
        if not found:
            names = ", ".join(sorted({o.item.name for o in self.of(hook)})) or "none"
            hint = self.hint(_MISSING[kind], name) if kind in _MISSING else ""
            raise OptionError(
                f"there is no {_NOUNS[kind]} {name!r}",
                f"{hint} Installed: {names}. `inferno plugins` lists them.".lstrip(),
            )
        return _single(found, f"{_NOUNS[kind]} {name!r}")

    @property
    def broken(self) -> tuple[Plugin, ...]:
        return tuple(p for p in self.plugins if p.error)

    def hint(self, kind: MissingKind, name: str) -> str:
        """A sentence on how to get what is missing; empty where no hint names it."""
        found = sorted(
            {
                o.item.distribution
                for o in self.of("inferno_hints")
                if (o.item.kind, o.item.name) == (kind, name)
            }
        )
        off = [d for d in found if any(p.distribution == d and p.disabled for p in self.plugins)]
        if off:
            return f"{off[0]} has it and is switched off: see --disable and --only."
        return f"Try {' or '.join(f'`pip install {d}`' for d in found)}." if found else ""

    def architecture(self, name: str) -> Choice[Architecture]:
        offers = self.of("inferno_architectures")
        found = [o for o in offers if o.item.name == name]
        fallback = [o for o in offers if o.item.name == ANY]
        hint = self.hint("architecture", name)
        if (
            not found and self.broken and fallback
        ):  # a broken plugin may have it: to be slow instead is not for us to choose
            switches = " ".join(f"--disable {plugin.name}" for plugin in self.broken)
            hint = f"{hint} Repair what is broken, or go on without it: {switches}.".lstrip()
            raise self._missing(
                f"no plugin that loads provides the architecture {name!r}", offers, hint
            )
        if not found and not fallback:
            if not hint and (any_hint := self.hint("architecture", ANY)):
                hint = f"No plugin is known to have it; a fallback may run it. {any_hint}"
            raise self._missing(
                f"no installed plugin provides the architecture {name!r}",
                offers,
                hint or "Install a plugin that provides it.",
            )
        found = found or fallback
        return Choice(_single(found, f"architecture {name!r}"))

    def format_of(self, path: Path) -> Choice[CheckpointFormat]:
        offers = self.of("inferno_checkpoint_formats")
        found = [o for o in offers if o.item.matches(path)]
        if not found:
            hint = self.hint("format", path.suffix.removeprefix(".").lower())
            raise self._missing(
                f"{path}: no installed format reads this",
                offers,
                hint
                or "Name a folder with config.json and *.safetensors, or install a plugin "
                "that reads the format.",
            )
        return _highest(found, lambda o: None, f"{path}")

    def open(self, path: Path) -> tuple[Choice[CheckpointFormat], Checkpoint]:
        """The checkpoint at `path`, headers read, and the format that reads it."""
        found = self.format_of(path)
        try:
            opened = found.item.open(path, [o.item for o in self.of("inferno_architectures")])
        except InfernoError as error:
            if error.missing and (hint := self.hint(error.missing.kind, error.missing.name)):
                error.remedy = f"{hint} {error.remedy}".rstrip()
            raise
        return found, opened

    def scheme_of(
        self, parts: Mapping[str, TensorInfo], quant_config: Mapping[str, Any], path: str
    ) -> Choice[QuantScheme]:
        offers = self.of("inferno_quant_schemes")
        found = [o for o in offers if o.item.owns(parts, quant_config)]
        if not found:
            stored = ", ".join(f"{part} ({info.dtype})" for part, info in sorted(parts.items()))
            hint = self.hint("scheme", str(quant_config.get("quant_method", "")))
            raise self._missing(
                f"{path}: no installed scheme reads a matrix stored as {stored}",
                offers,
                hint or "Install a plugin that reads this layout.",
            )
        return _highest(found, lambda o: None, f"the matrix {path}")

    def kernel(self, need: KernelNeed) -> tuple[Offer[KernelProvider] | None, tuple[Refusal, ...]]:
        """Who provides the op, or None: then torch computes it."""
        offers = self.of("inferno_kernels")

        def refuses(offer: Offer[KernelProvider]) -> str | None:
            if need.op not in offer.item.ops:
                return f"it does not provide {need.op}"
            return offer.item.refuses(need)

        asked = [(offer, refuses(offer)) for offer in offers]
        refusals = tuple(
            Refusal(o.item.name, o.distribution, reason)
            for o, reason in asked
            if reason is not None
        )
        willing = [offer for offer, reason in asked if reason is None]
        if not willing:
            return None, refusals
        choice = _highest(willing, lambda o: None, f"the op {need.op}")
        return choice.offer, (*refusals, *choice.refusals)

    def attention(
        self, need: AttentionNeed, name: str = "auto", block_size: int | None = None
    ) -> Choice[AttentionBackend]:
        offers = self.of("inferno_attention_backends")
        if name != "auto":
            self.named(AttentionBackend, name)

        def refuses(offer: Offer[AttentionBackend]) -> str | None:
            if name not in ("auto", offer.item.name):
                return f"{name} was asked for"
            unknown = sorted(need.features - offer.item.features)
            if unknown:
                return f"it does not know {', '.join(unknown)}"
            if block_size is not None and block_size % offer.item.block_multiple:
                return (
                    f"its blocks are multiples of {offer.item.block_multiple} tokens, "
                    f"{block_size} were asked for"
                )
            return offer.item.refuses(need)

        return _highest(
            offers,
            refuses,
            f"attention over {need.num_heads} heads of {need.head_dim}, {need.dtype}",
        )

    def cache_policy(self, name: str = "auto") -> Choice[CachePolicy]:
        offers = self.of("inferno_cache_policies")
        if name != "auto":
            self.named(CachePolicy, name)
        return _highest(
            offers,
            lambda o: None if name in ("auto", o.item.name) else f"{name} was asked for",
            "cache policy",
        )

    def source_of(self, ref: str) -> Choice[Source]:
        offers = self.of("inferno_sources")
        found = [o for o in offers if o.item.matches(ref)]
        if not found:
            known = sorted({name for o in offers for name in o.item.list()})
            looked = "; ".join(f"{o.item.name}: {o.item.describe}" for o in offers)
            near = f" Known here: {', '.join(known)}." if known else ""
            hint = self.hint("model", ref)
            raise ModelNotFoundError(
                f"no model {ref!r}", f"{hint} Looked for {looked}.{near}".lstrip()
            )
        return _highest(found, lambda o: None, f"{ref!r}")

    def _missing(self, cause: str, offers: Iterable[Offer[Any]], hint: str) -> UnsupportedError:
        """Nothing matches. A broken plugin may be why: then its own error is what the user sees."""
        installed = sorted({o.item.name for o in offers})
        remedy = f"{hint} Installed: {', '.join(installed) or 'none'}.".strip()
        if not self.broken:
            return UnsupportedError(cause, remedy)
        names = ", ".join(f"{p.distribution} ({p.error})" for p in self.broken)
        return UnsupportedError(
            f"{cause}; and these plugins did not load: {names}",
            remedy,
            detail=self.broken[0].detail,
        )


def _single(found: list[Offer[T]], what: str) -> Offer[T]:
    if len(found) > 1:
        names = [o.distribution for o in found]
        raise PluginError(
            f"{what} is offered by {' and '.join(names)}",
            f"Start with --disable {names[0]} or --disable {names[1]}, or uninstall one.",
        )
    return found[0]


def _highest(
    offers: Iterable[Offer[T]], refuses: Callable[[Offer[T]], str | None], what: str
) -> Choice[T]:
    """The willing offer of the highest priority, with the reasons of all others."""
    reasons = [(offer, refuses(offer)) for offer in offers]
    willing = [offer for offer, reason in reasons if reason is None]
    refusals = [
        Refusal(o.item.name, o.distribution, reason) for o, reason in reasons if reason is not None
    ]
    if not willing:
        told = (
            "; ".join(f"{r.name} ({r.distribution}): {r.reason}" for r in refusals)
            or "none is installed"
        )
        raise UnsupportedError(f"nothing installed serves {what}", told)
    best = max(_priority(o) for o in willing)
    chosen = _single([o for o in willing if _priority(o) == best], f"{what} (priority {best})")
    refusals += [
        Refusal(
            o.item.name, o.distribution, f"priority {_priority(o)}, {chosen.item.name} has {best}"
        )
        for o in willing
        if o is not chosen
    ]
    return Choice(chosen, tuple(refusals))


def _priority(offer: Offer[Any]) -> int:
    return int(getattr(offer.item, "priority", 0))
