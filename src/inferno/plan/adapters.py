"""Adapters: how many there is room for, and which are loaded at the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from inferno import host
from inferno.catalog import Catalog
from inferno.catalog.choice import choose
from inferno.contracts import DTYPE_BYTES, AdapterBase, AdapterFile, FetchOptions, LowRank
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.adapter_use import AdapterRoom, AdapterTarget, AdapterUse
from inferno.plan.decided import Decided
from inferno.plan.options import Options
from inferno.plan.plan import MemoryItem
from inferno.plan.schemes import Matrices
from inferno.request.requests import AdapterRef

MERGE_ADAPTER = (
    "Merge it into the model, `inferno convert MODEL --adapter ADAPTER --to safetensors "
    "-o FOLDER`, and serve that."
)
DEFAULT_RANK = 16
"""Of slots, if no adapter is loaded at the start that says more."""


def names_in_model(path: str) -> tuple[str, ...]:
    """Return the paths that a module of an adapter may have in the model: adapters of models with
    images have a prefix more, those of a model without its head one less."""
    return path, path.replace("language_model.", "", 1), f"model.{path}"


def find_adapter(
    catalog: Catalog, name: str, ref: str, fetch: FetchOptions, base: AdapterBase, vocab_size: int
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
            f"Name a folder with adapter_config.json, or a GGUF adapter. {hint}".rstrip(),
        )
    choice = choose(matching, ref)
    file: AdapterFile = choice.item.open(path, base)
    use = AdapterUse(
        adapter=AdapterRef(name, file.digest, str(path), choice.item.name),
        ref=ref,
        rank=max((pair.rank for pair in file.pairs.values()), default=0),
        count=len(file.pairs),
        beside=_targets(file.pairs, vocab_size),
    )
    return Decided(use, (("adapter format", choice.offer),))


def _targets(pairs: Mapping[str, LowRank], vocab_size: int) -> tuple[AdapterTarget, ...]:
    """Return what is changed besides linear layers."""
    targets: set[AdapterTarget] = set()
    for path, pair in pairs.items():
        if ".experts." in path:
            targets.add("experts")
        elif pair.outputs == vocab_size:
            targets.add("vocabulary")
    return tuple(sorted(targets))


def choose_adapters(
    catalog: Catalog,
    options: Options,
    fetch: FetchOptions,
    base: AdapterBase,
    vocab_size: int,
    *,
    mtp: bool,
) -> Decided[AdapterRoom | None]:
    """Decide how much room there is for adapters; None without any. `mtp` says whether layers that
    propose drafts share the model's embedding and head. Raises OptionError."""
    if not options.loras and options.max_loras is None:
        return Decided(None)
    choices = [
        find_adapter(catalog, name, ref, fetch, base, vocab_size)
        for name, ref in named(options.loras).items()
    ]
    uses = tuple(each.value for each in choices)
    most = max((use.rank for use in uses), default=DEFAULT_RANK)
    rank = options.max_lora_rank or most
    if uses and most > rank:
        [large, *_] = [use for use in uses if use.rank == most]
        raise OptionError(
            f"the adapter {large.adapter.name!r} has rank {most}, --max-lora-rank is {rank}",
            f"Give --max-lora-rank {most}.",
        )
    slots = options.max_loras or max(1, len({use.adapter.digest for use in uses}))
    offers = dict.fromkeys(offer for each in choices for offer in each.offers)
    beside = tuple(sorted({target for use in uses for target in use.beside}))
    if options.lora_targets == "all":
        beside = get_args(AdapterTarget)
    if mtp and "vocabulary" in beside:
        raise OptionError(
            "adapters of embeddings and output heads cannot be beside layers that propose drafts "
            "with the same",
            "Leave --speculative out, or use another proposer.",
        )
    room = AdapterRoom(slots=slots, rank=rank, beside=beside, loaded=uses)
    return Decided(room, tuple(offers))


def named(loras: Iterable[str]) -> Mapping[str, str]:
    """Return the references of `NAME=REF`, by name. Raises OptionError."""
    refs: dict[str, str] = {}
    for each in loras:
        name, equals, ref = each.partition("=")
        if not (name and equals and ref):
            raise OptionError(f"--lora {each!r} is not NAME=REF", "Write --lora NAME=REF.")
        if name in refs:
            raise OptionError(f"two adapters are called {name!r}", "Give each its own name.")
        refs[name] = ref
    return refs


def adapter_memory(
    room: AdapterRoom | None,
    matrices: Matrices,
    whole: Matrices,
    vocab_size: int,
    dtype: str,
    largest: Callable[[Mapping[str, int]], int],
) -> tuple[MemoryItem, ...]:
    """Return the memory of the slots: for each a row and a column of every matrix that adapters may
    change, times the rank. Logits are float32. `matrices` are those of one rank, `whole` those of
    all; `largest` returns what one rank has of bytes by path."""
    if room is None:
        return ()
    sizes, size = dict[str, int](), DTYPE_BYTES[dtype]
    for path, (_, shape) in matrices.held.items():
        if shape is None or (".experts." in path and "experts" not in room.beside):
            continue
        vocabulary = (full := whole.held[path][1]) is not None and full[0] == vocab_size
        if not vocabulary or "vocabulary" in room.beside:
            rows = shape[0] * (4 if vocabulary else size)
            sizes[path] = room.slots * room.rank * (rows + shape[1] * size)
    nbytes = largest(sizes)
    each = host.format_bytes(nbytes // room.slots)
    why = f"{room.slots} of rank {room.rank}, {each} each"
    return (MemoryItem("adapters", nbytes, why),)
