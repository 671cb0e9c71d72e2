"""The adapters that callers may name."""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Callable

from attrs import define, field

from inferno.contracts import AdapterBase, FetchOptions
from inferno.errors import OptionError, RequestError
from inferno.llm.outputs import OutputBuilder
from inferno.plan import AdapterUse, Opened, find_adapter
from inferno.request.requests import AdapterRef, Request


def reading(adapter: AdapterRef) -> OutputBuilder:
    """Return a request that ends as soon as the engine has read and checked an adapter."""
    request = Request(id=uuid.uuid4().hex, token_ids=(), adapter=adapter)
    return OutputBuilder(request, 0, None)


@define(eq=False)
class AdapterNames:
    """What the names of adapters stand for now: requests carry the content, not the name."""

    find: Callable[[str, str], AdapterUse] | None = None
    """(name, reference) -> the adapter, fetched and its headers read. None: there is no room for
    adapters."""
    uses: dict[str, AdapterUse] = field(factory=dict)
    """By name."""
    removed: set[str] = field(factory=set)
    """Names that requests may still have, and that mean nothing now."""

    @classmethod
    def of(cls, opened: Opened) -> AdapterNames:
        plan = opened.plan
        if plan.adapters is None:
            return cls()
        catalog = opened.parts.catalog
        base = AdapterBase(architecture=opened.parts.architecture, config=plan.config)

        def find(name: str, ref: str) -> AdapterUse:
            vocab_size = plan.vocab_size
            use = find_adapter(catalog, name, ref, FetchOptions(), base, vocab_size).value
            if plan.sandbox is not None:
                plan.sandbox.check(use.adapter.path)
            return use

        return cls(find, {use.adapter.name: use for use in plan.adapters.loaded})

    def named(self, name: str | None) -> AdapterRef | None:
        """Return the adapter of that name; None without a name. Raises RequestError."""
        if not name:
            return None
        if (use := self.uses.get(name)) is not None:
            return use.adapter
        near = difflib.get_close_matches(name, self.uses, n=3, cutoff=0.5)
        known = ", ".join(near or sorted(self.uses)[:8]) or "none"
        raise RequestError(
            f"there is no adapter {name[:80]!r}",
            f"Loaded: {known}. Load it with --lora NAME=REF or /v1/load_lora_adapter.",
            param="lora",
        )

    def known(self, name: str) -> str | None:
        """Return the name if it is an adapter's or was one; None for any other."""
        return name if name in self.uses or name in self.removed else None

    def add(self, use: AdapterUse) -> None:
        """Let requests name an adapter that the engine has checked."""
        self.uses[use.adapter.name] = use
        self.removed.discard(use.adapter.name)

    def look_up(self, name: str, ref: str) -> AdapterUse:
        """Fetch an adapter and read its headers; it has no name yet. May take long. Raises an
        InfernoError."""
        if self.find is None:
            raise OptionError(
                "this model has no room for adapters",
                "Start it with --max-loras, or with --lora NAME=REF.",
            )
        return self.find(name, ref)

    def remove(self, name: str) -> None:
        """Forget a name: requests that run keep their adapter. Raises RequestError."""
        self.named(name)
        del self.uses[name]
        self.removed.add(name)
