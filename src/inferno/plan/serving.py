"""What requests may ask for, and how answers are read."""

from __future__ import annotations

from attrs import frozen

from inferno.plan.backends import choose_all, choose_grammars
from inferno.plan.chat_formats import chat_need, choose_chat_format
from inferno.plan.decided import Decided
from inferno.plan.plan import ChatFormatUse, GrammarUse
from inferno.plan.stages import Given, ModelFacts


@frozen(kw_only=True)
class Serving:
    """What requests may ask for, and how answers are read."""

    chat_format: Decided[ChatFormatUse]
    grammars: Decided[tuple[GrammarUse, ...]]
    processors: Decided[None]
    fields: Decided[None]


def choose_serving(given: Given, model: ModelFacts) -> Serving:
    catalog = given.catalog
    need = chat_need(model.assets, model.name)
    return Serving(
        chat_format=choose_chat_format(catalog, need, given.options.chat_format),
        grammars=choose_grammars(catalog),
        processors=choose_all(catalog, "inferno_logits_processors", "logits processor"),
        fields=choose_all(catalog, "inferno_request_fields", "request field"),
    )
