"""Chooses the provider of each op, which steps are captured, and what requests may name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from functools import cache

from attrs import evolve

from inferno.catalog import Catalog, Offer, Refusal
from inferno.contracts import (
    COMPUTE_DTYPES,
    ENCODER_OPS,
    EXPERT_OPS,
    GROUPED,
    LINEAR,
    OPS,
    QUANTIZE,
    Device,
    DType,
    KernelNeed,
    KernelProvider,
    ModelConfig,
)
from inferno.plan.capture_use import CUDA_GRAPHS, CaptureUse
from inferno.plan.decided import Decided
from inferno.plan.encoders import is_encoder
from inferno.plan.kernel_use import KernelUse
from inferno.plan.plan import (
    TORCH,
    AttentionUse,
    BackendUse,
    GrammarUse,
    by_pattern,
)
from inferno.plan.schemes import Matrices

BUILTIN = "inferno"
"""The distribution of what is built in: torch computes all of it."""

MAX_CAPTURED = 64
"""With more sequences, a CPU's operators take far longer than calling them."""

MAX_CAPTURED_ON_DEVICE = 512
"""With more sequences, a device computes for longer than the host launches."""

PROMPT_SIZES = (*range(64, 256, 64), *range(256, 1025, 128))
"""Numbers of tokens of captured steps with prompts: close enough for little padding. Of more tokens
a device computes for longer than the host launches."""

ONEDNN_X86, ONEDNN_ARM = {"avx512bw", "avx512vl", "avx512dq"}, {"bf16"}
"""Features of processors for which torch's oneDNN packs bfloat16 matrices."""

MIN_BLOCKS = 8
"""Of a captured table on a CPU: few shapes for short contexts."""

NOT_CAPTURED = "Python calls each operator of small decode steps, some microseconds each"
"""What it costs that no step is captured."""


WHOLE_CONTEXTS = (
    "torch's attention would compute every sequence up to the longest context; choose another "
    "--attention-backend"
)

PADDED = "torch's attention is batch-invariant over a sequence's own length, not a padded one"

_EXPERT = re.compile(r"(?:^|\.)experts\.")
"""In the path of a matrix that is multiplied grouped, with those of the other experts."""


def choose_kernels(
    catalog: Catalog,
    matrices: Matrices,
    model: ModelConfig,
    dtype: DType,
    device: Device,
    more: Sequence[str] = (),
    *,
    batch_invariant: bool = False,
) -> Decided[tuple[KernelUse, ...]]:
    """Choose the provider of matrix products for each weight layout, and of the other ops, `more`
    among them. Torch computes ops without a provider, and matrices whose shape it refuses."""
    layouts, shapes = {use.layout for use in matrices.uses}, matrices.shapes
    quantized = {use.layout for use in matrices.uses if use.in_situ}
    experts = bool(getattr(model, "num_experts", 0))
    products = (LINEAR, GROUPED) if experts else (LINEAR,)
    needs = [
        KernelNeed(op=op, layout=layout, dtype=dtype, device=device)
        for op in products
        for layout in sorted({*layouts, dtype})
    ]
    of_encoders = ENCODER_OPS if is_encoder(model) else ()
    ops = (*OPS, *(EXPERT_OPS if experts else ()), *of_encoders, *more)
    needs += [KernelNeed(op=op, dtype=dtype, device=device) for op in ops]
    needs += [
        KernelNeed(op=QUANTIZE, layout=layout, dtype=dtype, device=device)
        for layout in sorted(quantized)
    ]
    choices = _choices(catalog, needs, batch_invariant)
    decided, notes = _uses(choices), []
    if any(use.op == LINEAR for use in decided.value):
        linear = [(need, o, refusals) for need, o, refusals in choices if need.op == LINEAR]
        for need, offer, refusals in linear:
            notes += _slow_matrices(need, offer, refusals, shapes, given=need.layout in layouts)
        notes += _rounded_inputs(linear, layouts)
    elif device.kind == "cpu":
        hint = catalog.hint("kernels", device.kind)
        notes.append(f"no native kernels: torch multiplies the matrices, slowly. {hint}".rstrip())
    return evolve(decided, notes=tuple(notes))


def kernels_for(
    catalog: Catalog, needs: Sequence[KernelNeed], *, batch_invariant: bool = False
) -> Decided[tuple[KernelUse, ...]]:
    """Choose the provider of each of these needs, if there is one."""
    return _uses(_choices(catalog, needs, batch_invariant))


_Choice = tuple[KernelNeed, Offer[KernelProvider] | None, Sequence[Refusal]]


def _choices(catalog: Catalog, needs: Sequence[KernelNeed], invariant: bool) -> list[_Choice]:
    return [(need, *catalog.kernel(need, batch_invariant=invariant)) for need in needs]


def _uses(choices: Sequence[_Choice]) -> Decided[tuple[KernelUse, ...]]:
    providers = {offer.item.name: offer.item for _, offer, _ in choices if offer is not None}
    levels = {name: item.level() for name, item in providers.items() if item.level is not None}
    uses = tuple(
        KernelUse(
            op=need.op,
            layout=need.layout,
            name=o.item.name,
            distribution=o.distribution,
            level=levels.get(o.item.name, ""),
        )
        for need, o, _ in choices
        if o is not None
    )
    return Decided(
        uses,
        tuple(("kernels", offer) for _, offer, _ in choices if offer is not None),
        tuple(refusal for _, _, refusals in choices for refusal in refusals),
    )


def products_of(
    kernels: Decided[tuple[KernelUse, ...]], matrices: Matrices, dtype: DType, device: Device
) -> dict[str, str]:
    """Return the provider that multiplies each matrix, by its module's path as in `Plan.modules`;
    "torch" where none takes its layout or its shape."""
    named = {(offer.item.name, offer.distribution): offer.item for _, offer in kernels.offers}
    providers = {(use.op, use.layout): named[use.name, use.distribution] for use in kernels.value}

    @cache
    def provider_of(op: str, layout: str, shape: tuple[int, int] | None) -> str:
        if (provider := providers.get((op, layout))) is None:
            return TORCH
        need = KernelNeed(op=op, layout=layout, dtype=dtype, device=device, shape=shape)
        return TORCH if provider.refuses(need) is not None else provider.name

    return by_pattern(
        {
            path: provider_of(GROUPED if _EXPERT.search(path) else LINEAR, *matrix)
            for path, matrix in matrices.held.items()
        }
    )


def choose_onednn(
    kernels: Decided[tuple[KernelUse, ...]],
    matrices: Matrices,
    device: Device,
    flags: Set[str],
) -> bool:
    """Whether dense bfloat16 matrices are left to torch, on a CPU for which its oneDNN packs
    them. `flags` are the processor's features."""
    layout = "bfloat16"
    taken = any(use.op == LINEAR and use.layout == layout for use in kernels.value)
    dense = any(use.layout == layout for use in matrices.uses)
    able = ONEDNN_X86 <= flags or ONEDNN_ARM <= flags
    return dense and not taken and device.kind == "cpu" and able


def _rounded_inputs(
    linear: Sequence[_Choice],
    layouts: Collection[str],
) -> list[str]:
    """Name the matrices whose products are less exact than float32, if that is the compute type."""
    rounded = [
        need.layout
        for need, offer, _ in linear
        if offer is not None and need.dtype == "float32" and need.layout in layouts
        if offer.item.rounds is not None and offer.item.rounds(need)
    ]
    if not rounded:
        return []
    return [
        f"the inputs of matrices in {', '.join(rounded)} are rounded to 8 bits, in float32 too; "
        "without these kernels (--disable) torch multiplies them exactly, in more time"
    ]


def _slow_matrices(
    need: KernelNeed,
    offer: Offer[KernelProvider] | None,
    refusals: Sequence[Refusal],
    shapes: Mapping[tuple[str, tuple[int, int]], int],
    *,
    given: bool,
) -> list[str]:
    """Describe the matrices of a layout that torch multiplies although there are kernels. `given`:
    the model has matrices of that layout."""
    if not given or need.device.kind != "cpu" and need.layout in COMPUTE_DTYPES:
        return []  # dense matrices on a GPU are multiplied by the vendor's library
    if offer is None:
        why = "; ".join(f"{refusal.name}: {refusal.reason}" for refusal in refusals)
        return [f"torch multiplies the matrices in {need.layout}, slowly: {why}"]
    refused = [
        (count, shape, reason)
        for (layout, shape), count in shapes.items()
        if layout == need.layout
        and (reason := offer.item.refuses(evolve(need, shape=shape))) is not None
    ]
    return [
        f"torch multiplies {count} matrices of {rows} x {columns} in {need.layout}, slowly: "
        f"{offer.item.name}: {reason}"
        for count, (rows, columns), reason in refused
    ]


def choose_capture(
    kernels: Decided[tuple[KernelUse, ...]],
    attention: Sequence[AttentionUse],
    device: Device,
    *,
    max_tokens: int,
    max_blocks: int,
    max_batched: int = 0,
    max_sequences: int = 0,
    reads_hidden: str | None = None,
    stops: str | None = None,
) -> Decided[CaptureUse | None]:
    """Choose which steps are captured: by the kernel provider, if what it cannot see is all
    torch's. Work of another distribution, outside torch's dispatcher, would be left out. CUDA
    graphs see all kernels, from whatever library. None if a proposer, named `reads_hidden`, needs
    the hidden states: a captured step returns only logits; or if something on the host `stops` a
    device in between.

    On a CPU, a padding row would cost as much as another, and a capture is soon made; on other
    devices it is the other way round."""
    providers = {offer.item.name: offer for _, offer in kernels.offers}
    able = [offer for offer in providers.values() if offer.item.capture is not None]
    encoder = any(use.need.bidirectional for use in attention)  # it has no decode steps
    if encoder or (not able and device.kind != "cuda"):
        return Decided(None)
    if stops is not None and device.kind != "cpu":
        return Decided(None, notes=(f"{NOT_CAPTURED}: {stops} in between",))
    if reads_hidden is not None:
        return Decided(None, notes=(f"{NOT_CAPTURED}: {reads_hidden} reads their hidden states",))
    tokens = [use.tokens or BackendUse(use.name, use.distribution) for use in attention]
    if any(use.need.batch_invariant for use in attention) and any(
        use.distribution == BUILTIN for use in tokens
    ):
        return Decided(None, notes=(f"{NOT_CAPTURED}: {PADDED}",))
    if not able:
        if any(use.distribution == BUILTIN for use in tokens):
            return Decided(None, notes=(f"{NOT_CAPTURED}: {WHOLE_CONTEXTS}",))
        name = CUDA_GRAPHS
    else:
        [offer, *_] = able
        name = offer.item.name
        uses: Sequence[KernelUse | BackendUse] = (*kernels.value, *tokens)
        others = {
            use.distribution: use.name
            for use in uses
            if use.distribution not in (offer.distribution, BUILTIN)
        }
        if others:
            names = ", ".join(f"{name} of {d}" for d, name in others.items())
            return Decided(
                None, notes=(f"{NOT_CAPTURED}: {offer.distribution} cannot capture {names}",)
            )
    if device.kind == "cpu":
        sizes = tuple(range(1, min(MAX_CAPTURED, max_tokens) + 1))
        blocks = _powers_of_two(MIN_BLOCKS, max(MIN_BLOCKS, max_blocks))
        return Decided(CaptureUse(name=name, sizes=sizes, blocks=blocks))
    sizes = device_sizes(min(max_tokens, MAX_CAPTURED_ON_DEVICE))
    use = CaptureUse(name=name, sizes=sizes, blocks=(max_blocks,), ahead=True)
    if attention and all(each.captures_prompts for each in attention):
        use = _with_prompts(use, max_batched, min(max_sequences, MAX_CAPTURED_ON_DEVICE))
    return Decided(use)


def _with_prompts(use: CaptureUse, max_batched: int, max_sequences: int) -> CaptureUse:
    """Return a use that captures steps with prompts too, of at most so many tokens and sequences:
    no tokens where the host must know the lengths, as for recurrent states."""
    sizes = tuple(size for size in PROMPT_SIZES if size <= max_batched)
    sequences = max_sequences + 1
    return evolve(use, prompts=sizes, sequences=sequences + (sequences in sizes))


def device_sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of sequences whose steps are captured on a device: 1, 2, 4, each eighth up
    to 256, each 64th beyond, and `most`."""
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, most, 64))
    return (*(size for size in steps if size < most), most)


def _powers_of_two(least: int, most: int) -> tuple[int, ...]:
    """Return those from `least` that are less than `most`, and `most`."""
    exponents = range(least.bit_length() - 1, (most - 1).bit_length())
    return (*(1 << i for i in exponents), most)


def choose_grammars(catalog: Catalog) -> Decided[tuple[GrammarUse, ...]]:
    """Choose the provider of each kind of grammar, for structured output."""
    offers, refusals = catalog.grammars()
    uses = tuple(
        GrammarUse(kind, offer.item.name, offer.distribution) for kind, offer in offers.items()
    )
    return Decided(uses, tuple(("grammars", offer) for offer in offers.values()), refusals)


def choose_all(catalog: Catalog, hook: str, kind: str) -> Decided[None]:
    """Choose everything that a hook declares, for requests to name: all but the names that two
    plugins offer."""
    offers = catalog.of(hook)
    names = Counter(offer.item.name for offer in offers)
    single = [offer for offer in offers if names[offer.item.name] == 1]
    notes = [
        f"the {kind} {name} is offered by {count} plugins, so no request can use it"
        for name, count in names.items()
        if count > 1
    ]
    return Decided(None, tuple((kind, offer) for offer in single), notes=tuple(notes))
