"""Chooses the proposer of drafts for speculative decoding, and plans what it computes with."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, field, frozen

from inferno.catalog import Catalog, Offer
from inferno.contracts import (
    Architecture,
    AttentionBackend,
    AttentionSpec,
    Checkpoint,
    ModelConfig,
    MTPModelConfig,
    Proposer,
    TensorInfo,
)
from inferno.errors import ModelNotFoundError, OptionError, UnsupportedError
from inferno.plan.decided import Decided
from inferno.plan.opened import Opened
from inferno.plan.options import Options
from inferno.plan.plan import AttentionUse, MemoryItem, Speculation
from inferno.plan.stored import mtp_tensors

DRAFT_MODEL = "draft"
"""The proposer that is built for a reference to a draft model."""

Open = Callable[[str, Options], Opened]


@frozen(kw_only=True)
class Drafting:
    """The plan's speculative decoding, and what it adds to the plan."""

    speculation: Speculation
    attention: tuple[AttentionUse, ...] = ()
    """The draft model's layers, numbered after the model's."""
    memory: tuple[MemoryItem, ...] = ()
    opened: Opened | None = None
    """The draft model."""


def choose_proposer(catalog: Catalog, wanted: str) -> Offer[Proposer]:
    """Choose the proposer that `options.speculative` names; any other name is a reference to a
    draft model. Raises OptionError."""
    names = [offer.item.name for offer in catalog.of("inferno_proposers")]
    if wanted not in names:
        try:
            catalog.source_of(wanted)
        except ModelNotFoundError as error:
            near = difflib.get_close_matches(wanted, names, n=1)
            able = [name for name in names if name != DRAFT_MODEL]
            raise OptionError(
                f"--speculative {wanted} is neither a proposer nor a model: {error.cause}",
                f"Did you mean {near[0]}?"
                if near
                else f"Proposers: {', '.join(sorted(able))}. A draft model is a path or a hub id.",
            ) from error
        return catalog.named(Proposer, DRAFT_MODEL)
    offer = catalog.named(Proposer, wanted)
    if offer.item.needs == "model":
        raise OptionError(
            f"--speculative {wanted} names no model", "Give a draft model's reference."
        )
    return offer


@frozen(kw_only=True)
class MTPUse:
    """The multi-token-prediction layers that propose drafts; empty if none do."""

    tensors: Mapping[str, TensorInfo] = field(factory=dict)
    specs: tuple[AttentionSpec, ...] = ()


def mtp_use(
    proposer: Proposer, architecture: Architecture, model: ModelConfig, checkpoint: Checkpoint
) -> MTPUse:
    """Return the model's multi-token-prediction layers if the proposer needs them. Raises
    UnsupportedError if the model has none."""
    if proposer.needs != "mtp":
        return MTPUse()
    remedy = "Use --speculative ngram, or name a draft model."
    specs = tuple(model.mtp_specs()) if isinstance(model, MTPModelConfig) else ()
    if architecture.mtp is None or not specs:
        raise UnsupportedError("this model has no multi-token-prediction layers", remedy)
    if not (tensors := mtp_tensors(checkpoint.tensors, model)):
        raise UnsupportedError(
            "this checkpoint does not store the model's multi-token-prediction layers", remedy
        )
    return MTPUse(tensors=tensors, specs=specs)


def choose_drafting(
    catalog: Catalog,
    offer: Offer[Proposer],
    options: Options,
    model: ModelConfig,
    num_layers: int,
    block_size: int,
    open_draft: Open,
) -> Decided[Drafting]:
    """Plan speculative decoding with that proposer, and the draft model if it needs one. Raises
    OptionError if the draft model has more tokens, UnsupportedError if it has states."""
    proposer, wanted = offer.item, options.speculative
    assert wanted is not None, "called if the user asked for drafts"
    speculation = Speculation(
        proposer=proposer.name,
        distribution=offer.distribution,
        num_drafts=options.num_speculative_tokens or proposer.num_drafts,
        propose_cost=proposer.cost,
    )
    chosen: tuple[tuple[str, Offer[Any]], ...] = (("proposer", offer),)
    rows = min(
        options.max_num_seqs * speculation.num_drafts,
        options.max_num_batched_tokens - options.max_num_seqs,
    )
    logits = MemoryItem(
        "draft logits", rows * model.vocab_size * 4, f"{rows} rows of {model.vocab_size}"
    )
    if proposer.needs != "model":
        return Decided(Drafting(speculation=speculation, memory=(logits,)), chosen)
    draft_options = evolve(
        options,
        speculative=None,
        num_speculative_tokens=None,
        revision=None,  # of another repository
        isq=None,
        requantize=False,
        overrides=(),
        tp=1,  # the first rank drafts alone
        pp=1,
        ep=False,
        experts_on_host=0,
        fetch_experts_from="auto",
        nodes=1,
        executor=None,
        numa=None,
        dtype="auto",
        max_model_len=None,
        block_size=block_size,
        served_model_name=None,
        chat_format="none",
        batch_invariant=False,  # a draft decides how many tokens a step has, and none of them
    )
    opened = open_draft(wanted, draft_options)
    try:
        planned = _with_model(opened, speculation, model, num_layers)
        chosen += _backends(catalog, planned)
        return Decided(evolve(planned, memory=(logits, *planned.memory)), chosen)
    except BaseException:
        opened.close()
        raise


def _backends(
    catalog: Catalog, drafting: Drafting
) -> tuple[tuple[str, Offer[AttentionBackend]], ...]:
    """Return what a draft model's layers attend with: a model without attention, or with another
    kind, has not chosen it."""
    uses = [each for use in drafting.attention for each in (use, use.tokens) if each is not None]
    return tuple(
        ("attention", catalog.named(AttentionBackend, use.name, use.distribution)) for use in uses
    )


def _with_model(
    opened: Opened, speculation: Speculation, model: ModelConfig, num_layers: int
) -> Drafting:
    draft = opened.plan
    if draft.states:
        raise UnsupportedError(
            f"the draft model {draft.ref} has recurrent states, which cannot be rolled back",
            "Choose a draft model with attention only.",
        )
    if draft.vocab_size > model.vocab_size:
        raise OptionError(
            f"the draft model {draft.ref} has {draft.vocab_size} tokens, the model "
            f"{model.vocab_size}",
            "Choose a draft model with the same vocabulary.",
        )
    attention = tuple(
        evolve(use, layers=tuple(num_layers + layer for layer in use.layers))
        for use in draft.attention
    )
    memory = [item for item in draft.memory if item.name in ("weights", "activations")]
    return Drafting(
        speculation=evolve(speculation, draft=draft),
        attention=attention,
        memory=tuple(evolve(item, name=f"draft {item.name}") for item in memory),
        opened=opened,
    )
