"""Chooses the proposer of drafts for speculative decoding, and plans the draft model."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from inferno.catalog import Catalog
from inferno.contracts import ModelConfig, Proposer
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.cache_groups import StateUse
from inferno.plan.decided import Decided
from inferno.plan.opened import Opened
from inferno.plan.options import Options
from inferno.plan.plan import AttentionUse, MemoryItem, Speculation

DRAFT_MODEL = "draft"
"""The proposer that computes drafts with a smaller model."""

Open = Callable[[str, Options], Opened]


@frozen(kw_only=True)
class Drafting:
    """How the plan speculates, and what that adds to it."""

    speculation: Speculation
    proposer: Proposer
    attention: tuple[AttentionUse, ...] = ()
    """The draft model's layers, numbered after the model's."""
    memory: tuple[MemoryItem, ...] = ()
    opened: Opened | None = None
    """The draft model."""


def choose_drafting(
    catalog: Catalog,
    options: Options,
    model: ModelConfig,
    states: tuple[StateUse, ...],
    num_layers: int,
    block_size: int,
    open_draft: Open,
) -> Decided[Drafting]:
    """Choose the proposer that `options.speculative` names; any other name is a reference to a
    draft model. Raises UnsupportedError if the model cannot verify drafts, OptionError for a draft
    model with another vocabulary."""
    wanted = options.speculative
    assert wanted is not None, "called if the user asked for drafts"
    if states:
        raise UnsupportedError(
            "speculative decoding needs states that can be rolled back, and this model's recurrent "
            "states cannot",
            "Leave out --speculative.",
        )
    if any(offer.item.name == wanted for offer in catalog.of("inferno_proposers")):
        offer = catalog.named(Proposer, wanted)
        if wanted == DRAFT_MODEL:
            raise OptionError(
                f"--speculative {DRAFT_MODEL} names no model", "Give a draft model's reference."
            )
        return Decided(
            Drafting(
                speculation=_speculation(offer.item, offer.distribution, options),
                proposer=offer.item,
            ),
            (("proposer", offer),),
        )
    offer = catalog.named(Proposer, DRAFT_MODEL)
    draft_options = evolve(
        options,
        speculative=None,
        num_speculative_tokens=None,
        isq=None,
        dtype="auto",
        max_model_len=None,
        block_size=block_size,
        served_model_name=None,
    )
    opened = open_draft(wanted, draft_options)
    try:
        return Decided(
            _with_model(opened, offer.item, offer.distribution, options, model, num_layers),
            (("proposer", offer),),
        )
    except BaseException:
        opened.close()
        raise


def _speculation(proposer: Proposer, distribution: str, options: Options) -> Speculation:
    return Speculation(
        proposer=proposer.name,
        distribution=distribution,
        num_drafts=options.num_speculative_tokens or proposer.num_drafts,
        propose_cost=proposer.cost,
    )


def _with_model(
    opened: Opened,
    proposer: Proposer,
    distribution: str,
    options: Options,
    model: ModelConfig,
    num_layers: int,
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
        speculation=evolve(_speculation(proposer, distribution, options), draft=draft),
        proposer=proposer,
        attention=attention,
        memory=tuple(evolve(item, name=f"draft {item.name}") for item in memory),
        opened=opened,
    )
