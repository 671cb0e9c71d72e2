"""Adapters: how many there is room for, and which are loaded at the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from inferno import host
from inferno.catalog import Catalog
from inferno.catalog.choice import choose
from inferno.contracts import DTYPE_BYTES, AdapterBase, AdapterFile, FetchOptions
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.decided import Decided
from inferno.plan.options import Options
from inferno.plan.plan import AdapterRoom, AdapterUse, MemoryItem
from inferno.plan.schemes import Matrices
from inferno.request.requests import AdapterRef

MERGE_ADAPTER = "Merge it into the model with PEFT's merge_and_unload, and serve that."
DEFAULT_RANK = 16
"""Of slots, if no adapter is loaded at the start that says more."""


def find_adapter(
    catalog: Catalog, name: str, ref: str, fetch: FetchOptions, base: AdapterBase
) -> Decided[AdapterUse]:
    """Fetch an adapter and read its headers. Raises an InfernoError with a remedy."""
    path = catalog.source_of(ref).item.fetch(ref, fetch)
    offers = catalog.of("inferno_adapter_formats")
    matching = [offer for offer in offers if offer.item.matches(path)]
    if not matching:
        hint = catalog.missing_hint("format", "peft")
        known = ", ".join(sorted(offer.item.name for offer in offers)) or "none"
        raise UnsupportedError(
            f"{ref} is no adapter in a format that is installed ({known})",
            f"Name a folder with adapter_config.json. {hint}".rstrip(),
        )
    choice = choose(matching, ref)
    file: AdapterFile = choice.item.open(path, base)
    use = AdapterUse(
        adapter=AdapterRef(name, file.digest, str(path), choice.item.name),
        ref=ref,
        rank=max((pair.rank for pair in file.pairs.values()), default=0),
        count=len(file.pairs),
    )
    return Decided(use, (("adapter format", choice.offer),))


def choose_adapters(
    catalog: Catalog, options: Options, fetch: FetchOptions, base: AdapterBase
) -> Decided[AdapterRoom | None]:
    """Decide how much room there is for adapters; None without any. Raises OptionError."""
    if not options.loras and options.max_loras is None:
        return Decided(None)
    found = [
        find_adapter(catalog, name, ref, fetch, base) for name, ref in named(options.loras).items()
    ]
    uses = tuple(each.value for each in found)
    most = max((use.rank for use in uses), default=DEFAULT_RANK)
    rank = options.max_lora_rank or most
    if uses and most > rank:
        [large, *_] = [use for use in uses if use.rank == most]
        raise OptionError(
            f"the adapter {large.adapter.name!r} has rank {most}, --max-lora-rank is {rank}",
            f"Give --max-lora-rank {most}.",
        )
    slots = options.max_loras or max(1, len({use.adapter.digest for use in uses}))
    offers = dict.fromkeys(offer for each in found for offer in each.offers)
    return Decided(AdapterRoom(slots=slots, rank=rank, loaded=uses), tuple(offers))


def named(loras: Iterable[str]) -> Mapping[str, str]:
    """Return the references of `NAME=REF`, by name. Raises OptionError."""
    found: dict[str, str] = {}
    for each in loras:
        name, equals, ref = each.partition("=")
        if not (name and equals and ref):
            raise OptionError(f"--lora {each!r} is not NAME=REF", "Write --lora NAME=REF.")
        if name in found:
            raise OptionError(f"two adapters are called {name!r}", "Give each its own name.")
        found[name] = ref
    return found


def adapter_memory(
    room: AdapterRoom | None, matrices: Matrices, vocab_size: int, dtype: str
) -> tuple[MemoryItem, ...]:
    """Return the memory of the slots: for each a row and a column of every linear layer, times the
    rank."""
    if room is None:
        return ()
    shapes = [
        shape
        for path, (_, shape) in matrices.held.items()
        if shape is not None and shape[0] != vocab_size and ".experts." not in path
    ]
    width = sum(rows + columns for rows, columns in shapes)
    nbytes = room.slots * room.rank * width * DTYPE_BYTES[dtype]
    each = host.format_bytes(nbytes // room.slots)
    why = f"{room.slots} of rank {room.rank}, {each} each"
    return (MemoryItem("adapters", nbytes, why),)
