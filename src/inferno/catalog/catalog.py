"""The catalog: the offers of the installed plugins, by hook and name. The only caller of hooks.

One rule chooses everywhere (`inferno.catalog.choice`): of the offers that match and do not refuse,
the one with the highest priority. A tie is an error that names both distributions. A plugin that
does not import, or whose offers break the contract, is set aside with its traceback and a remedy;
so is a single declaration of another API version. That is fatal only when something needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from attrs import evolve, frozen

from inferno import contracts
from inferno.catalog.choice import choose, none_serves, single, weigh
from inferno.catalog.offers import KINDS, Choice, Offer, Plugin, Refusal, T
from inferno.catalog.unknown import no_model
from inferno.errors import (
    InfernoError,
    MissingKind,
    OptionError,
    UnsupportedError,
)
from inferno.hookspecs import HOOKS

if TYPE_CHECKING:
    from inferno.contracts import (
        Architecture,
        AttentionBackend,
        AttentionNeed,
        CachePolicy,
        ChatFormat,
        ChatNeed,
        Checkpoint,
        CheckpointFormat,
        GrammarProvider,
        Hint,
        KernelNeed,
        KernelProvider,
        QuantScheme,
        QueuePolicy,
        Source,
        StoredMatrix,
    )

ANY = "*"
"""The name of the fallback architecture, chosen if none has the model's name."""


@frozen
class Catalog:
    """All offers, by hook. A name that two distributions offer is kept twice: choosing it is an
    error, having both installed is not."""

    plugins: tuple[Plugin, ...]
    offers: Mapping[str, tuple[Offer[Any], ...]]

    def of(self, hook: str) -> tuple[Offer[Any], ...]:
        return self.offers.get(hook, ())

    def named(self, kind: type[T], name: str, distribution: str | None = None) -> Offer[T]:
        """Return the declaration of that kind and name, of that distribution if given. Raises
        OptionError if there is none, PluginError if there are two."""
        [hook] = [hook for hook, declared in KINDS.items() if declared is kind]
        noun, hinted = HOOKS[hook].noun, HOOKS[hook].hinted
        offers = [
            o
            for o in self.of(hook)
            if o.item.name == name and distribution in (None, o.distribution)
        ]
        if not offers:
            names = ", ".join(sorted({o.item.name for o in self.of(hook)})) or "none"
            hint = self.hint(hinted, name) if hinted else ""
            raise OptionError(
                f"there is no {noun} {name!r}",
                f"{hint} Installed: {names}. `inferno plugins` lists them.".lstrip(),
            )
        return single(offers, f"{noun} {name!r}")

    @property
    def broken(self) -> tuple[Plugin, ...]:
        """Plugins that are set aside entirely."""
        return tuple(p for p in self.plugins if p.error)

    @property
    def aside(self) -> tuple[Plugin, ...]:
        """Plugins that are set aside, entirely or in part."""
        return tuple(p for p in self.plugins if p.error or p.set_aside)

    def hint(self, kind: MissingKind, name: str) -> str:
        """Return a sentence on how to install what is missing, or an empty string if no hint
        knows."""
        if remedies := [h.remedy for h in self._hints(kind, name) if h.remedy]:
            return remedies[0]
        packages = self._hinted(kind, name)
        off = [d for d in packages if any(p.distribution == d and p.disabled for p in self.plugins)]
        if off:
            return f"{off[0]} has it and is switched off: see --disable and --only."
        return f"Try {' or '.join(f'`pip install {d}`' for d in packages)}." if packages else ""

    def missing_hint(self, kind: MissingKind, name: str) -> str:
        """Return `hint` unless the distribution is installed and in use."""
        running = {p.distribution for p in self.plugins if not p.disabled}
        return "" if running & {*self._hinted(kind, name)} else self.hint(kind, name)

    def _hinted(self, kind: MissingKind, name: str) -> list[str]:
        """Return the distributions that are known to have it."""
        return sorted({h.distribution for h in self._hints(kind, name) if h.distribution})

    def _hints(self, kind: MissingKind, name: str) -> list[Hint]:
        hints = [o.item for o in self.of("inferno_hints") if o.item.kind == kind]
        if kind == "architecture":  # classes are known in any spelling of lower and upper case
            return [hint for hint in hints if hint.name.lower() == name.lower()]
        return [hint for hint in hints if hint.name == name]

    def architecture(self, name: str) -> Choice[Architecture]:
        """Choose the architecture of that name, else the fallback (`*`). If a plugin that has the
        name is set aside, that is an error: the kernel does not silently fall back to a slower
        one."""
        offers = self.of("inferno_architectures")
        what, hint = f"architecture {name!r}", self.hint("architecture", name)
        if candidates := [o for o in offers if o.item.name == name]:
            return choose(candidates, what)
        if lost := self.has_lost(name):
            switches = " ".join(f"--disable {plugin.name}" for plugin in lost)
            remedy = f"{lost[0].remedy_for(name)} Or run without it: {switches}."
            raise self._missing(f"no working plugin provides the {what}", offers, remedy, lost)
        if fallback := [o for o in offers if o.item.name == ANY]:
            choice = choose(fallback, what)
            aside = [Refusal(p.name, p.distribution, f"set aside: {p.error}") for p in self.broken]
            return Choice(choice.offer, (*choice.refusals, *aside))
        if not hint and (any_hint := self.hint("architecture", ANY)):
            hint = f"No plugin is known to have it; a fallback may run it. {any_hint}"
        hint = hint or "Install a plugin that provides it."
        raise self._missing(f"no installed plugin provides the {what}", offers, hint)

    def has_lost(self, name: str) -> list[Plugin]:
        """Return the plugins that have the architecture of that name, and are set aside."""
        return [plugin for plugin in self.plugins if self._has_lost(plugin, name)]

    def _has_lost(self, plugin: Plugin, name: str) -> bool:
        """Whether the plugin is set aside but has the architecture, by its own declaration or by a
        hint."""
        if any(s.hook == "inferno_architectures" and s.name == name for s in plugin.set_aside):
            return True
        return bool(plugin.error) and plugin.distribution in self._hinted("architecture", name)

    def format_of(self, path: Path) -> Choice[CheckpointFormat]:
        offers = self.of("inferno_checkpoint_formats")
        candidates = [o for o in offers if o.item.matches(path)]
        if not candidates:
            hint = self.hint("format", path.suffix.removeprefix(".").lower())
            raise self._missing(
                f"{path}: no installed format reads this",
                offers,
                hint
                or "Name a folder with config.json and *.safetensors, or install a plugin "
                "that reads the format.",
            )
        return choose(candidates, f"{path}")

    def open(
        self, path: Path, encoder: Path | None = None
    ) -> tuple[Choice[CheckpointFormat], Checkpoint]:
        """Open the checkpoint at `path`, reading its headers, and return it as the quantization
        schemes see it, with its format. `encoder` is the file with its encoder of images, if that
        is apart (`CheckpointFormat.join`)."""
        choice = self.format_of(path)
        architectures = [o.item for o in self.of("inferno_architectures")]
        try:
            opened = choice.item.open(path, architectures)
            try:
                if encoder is not None and choice.item.join is not None:
                    opened = choice.item.join(opened, encoder, architectures)
                seen = opened
                for offer in self.of("inferno_quant_schemes"):
                    if offer.item.adapt is not None:
                        seen = offer.item.adapt(seen)
                if seen.config.get("quantization_config"):
                    from inferno.catalog.schemed import SchemedView  # no list of commands needs it

                    seen = SchemedView(seen, lambda stored: self.scheme_of(stored).item)
            except InfernoError:
                opened.close()
                raise
        except InfernoError as error:
            if error.missing and (hint := self.hint(error.missing.kind, error.missing.name)):
                error.remedy = f"{hint} {error.remedy}".rstrip()
            raise
        return choice, seen

    def scheme_of(self, stored: StoredMatrix) -> Choice[QuantScheme]:
        """Choose the scheme that loads a matrix. If none does, the error says what the installed
        schemes for its quantization method refuse, or which distribution to install."""
        offers = self.of("inferno_quant_schemes")
        reasons = {id(offer): offer.item.refuses(stored) for offer in offers}
        candidates = [offer for offer in offers if reasons[id(offer)] is None]
        if candidates:
            return choose(candidates, f"the matrix {stored.path}")
        parts = sorted(stored.parts.items())
        contents = ", ".join(f"{part} ({info.dtype})" for part, info in parts)
        sentences: dict[str, None] = {}
        for key in ("checkpoint_format", "quant_method"):
            method = str(stored.quant_config.get(key, ""))
            known = self._hinted("scheme", method)
            handlers = [o for o in offers if o.item.name == method or o.distribution in known]
            sentences |= dict.fromkeys(f"{o.distribution}: {reasons[id(o)]}." for o in handlers)
            if not handlers and (hint := self.hint("scheme", method)):
                sentences[hint] = None
        raise self._missing(
            f"{stored.path}: no installed scheme reads a matrix stored as {contents}",
            offers,
            " ".join(sentences) or "Install a plugin that reads this layout.",
        )

    def kernel(
        self, need: KernelNeed, *, batch_invariant: bool = False
    ) -> tuple[Offer[KernelProvider] | None, tuple[Refusal, ...]]:
        """Choose the provider of an op: if asked for, only one that is batch-invariant. None: torch
        computes it."""
        offers = self.of("inferno_kernels")

        def refuses(offer: Offer[KernelProvider]) -> str | None:
            reason = offer.item.refuses(need)  # of the device first: it is one line for all ops
            if reason is None and need.op not in offer.item.ops:
                return f"it does not provide {need.op}"
            if reason is None and batch_invariant and not _promises(offer.item, need):
                return "it does not promise the same bits in every batch"
            return reason

        return weigh(offers, f"the op {need.op}", refuses)

    def attention(
        self,
        need: AttentionNeed,
        name: str = "auto",
        block_size: int | None = None,
        beside: AttentionBackend | None = None,
    ) -> Choice[AttentionBackend]:
        """Choose an attention backend: one that can share a cache with `beside`, if it is given.
        Raises OptionError if there is none of that name, UnsupportedError if all refuse."""
        offers = self.of("inferno_attention_backends")
        if name != "auto":
            self.named(contracts.AttentionBackend, name)

        def refuses(offer: Offer[AttentionBackend]) -> str | None:
            if name not in ("auto", offer.item.name):
                return f"{name} was asked for"
            unknown = sorted(need.features - offer.item.features - contracts.BY_STEP)
            if unknown:
                return f"it does not know {', '.join(unknown)}"
            if offer.item.begin is not None and need.features & contracts.BY_STEP:
                return "it prepares steps before they are cut into chunks"
            if block_size is not None and block_size % offer.item.block_multiple:
                return (
                    f"its blocks are multiples of {offer.item.block_multiple} tokens, "
                    f"{block_size} were asked for"
                )
            if beside is not None and not _share(offer.item, beside):
                return (
                    f"it keeps keys and values in {offer.item.layout or 'a private layout'}, "
                    f"{beside.name} in {beside.layout or 'a private layout'}"
                )
            return offer.item.refuses(need)

        what = f"attention over {need.num_heads} heads of {need.head_dim}, {need.dtype}"
        what += ", batch-invariant" if need.batch_invariant else ""
        offer, refusals = weigh(offers, what, refuses)
        if offer is None:
            raise none_serves(what, [r for r in refusals if name in ("auto", r.name)])
        return Choice(offer, refusals)

    def cache_policy(self, name: str = "auto") -> Choice[CachePolicy]:
        offers = self.of("inferno_cache_policies")
        if name != "auto":
            self.named(contracts.CachePolicy, name)
        return choose(
            offers,
            "cache policy",
            lambda o: None if name in ("auto", o.item.name) else f"{name} was asked for",
        )

    def queue_policy(self, name: str = "auto") -> Choice[QueuePolicy]:
        offers = self.of("inferno_queue_policies")
        if name != "auto":
            self.named(contracts.QueuePolicy, name)
        return choose(
            offers,
            "queue policy",
            lambda o: None if name in ("auto", o.item.name) else f"{name} was asked for",
        )

    def chat_format(
        self, need: ChatNeed
    ) -> tuple[Offer[ChatFormat] | None, str, tuple[Refusal, ...]]:
        """Choose the chat format of a checkpoint, and say why. None: no format matches. The
        refusals are the others that match."""
        offers = self.of("inferno_chat_formats")
        reasons = {id(o): reason for o in offers if (reason := o.item.matches(need)) is not None}
        candidates = [o for o in offers if id(o) in reasons]
        if not candidates:
            return None, "", ()
        choice = choose(candidates, "this chat format")
        refusals = [
            evolve(refusal, reason=f"{reasons[id(offer)]}; {refusal.reason}")
            for refusal in choice.refusals
            for offer in candidates
            if (offer.item.name, offer.distribution) == (refusal.name, refusal.distribution)
        ]
        return choice.offer, reasons[id(choice.offer)], tuple(refusals)

    def grammars(self) -> tuple[dict[str, Offer[GrammarProvider]], tuple[Refusal, ...]]:
        """Choose a provider for each kind of grammar. Kinds that none compiles are left out."""
        offers = self.of("inferno_grammars")
        providers: dict[str, Offer[GrammarProvider]] = {}
        refusals: list[Refusal] = []
        for kind in get_args(contracts.GrammarKind):
            able = [o for o in offers if kind in o.item.kinds]

            def refuses(offer: Offer[GrammarProvider], kind: str = kind) -> str | None:
                return offer.item.refuses(kind)

            offer, refused = weigh(able, f"grammars of kind {kind}", refuses)
            refusals += refused
            if offer is not None:
                providers[kind] = offer
        return providers, tuple(dict.fromkeys(refusals))

    def source_of(self, ref: str) -> Choice[Source]:
        offers = self.of("inferno_sources")
        candidates = [o for o in offers if o.item.matches(ref)]
        if not candidates:
            prefix = "".join(ref.partition(":")[:2])
            hint = self.hint("model", ref) or self.hint("model", prefix)
            raise no_model(ref, [offer.item for offer in offers], hint)
        return choose(candidates, f"{ref!r}")

    def _missing(
        self,
        cause: str,
        offers: Iterable[Offer[Any]],
        hint: str,
        lost: Iterable[Plugin] | None = None,
    ) -> UnsupportedError:
        """Return the error for no match. It names the plugins that are set aside (only `lost`, if
        given), which may be the reason, and shows the first one's error."""
        installed = sorted({o.item.name for o in offers})
        remedy = f"{hint} Installed: {', '.join(installed) or 'none'}.".strip()
        aside = list(self.aside if lost is None else lost)
        if not aside:
            return UnsupportedError(cause, remedy)
        names = ", ".join(f"{p.distribution} ({p.reason})" for p in aside)
        return UnsupportedError(
            f"{cause}; and these plugins did not load: {names}", remedy, detail=aside[0].detail
        )


def _promises(provider: KernelProvider, need: KernelNeed) -> bool:
    return provider.batch_invariant is not None and provider.batch_invariant(need)


def _share(one: AttentionBackend, other: AttentionBackend) -> bool:
    """Whether two backends read the same cache layout."""
    return one == other or one.layout == other.layout != ""
