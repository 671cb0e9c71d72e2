"""Chooses the chat format: how the model writes reasoning and tool calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from inferno.catalog import Catalog
from inferno.contracts import AddedToken, ChatFormat, ChatNeed, TextAssets
from inferno.errors import CheckpointError
from inferno.plan.decided import Decided
from inferno.plan.plan import ChatFormatUse

NONE = "none"
"""The option's value for no chat format: all output is content."""


def chat_need(assets: TextAssets, architecture: str, template: str | None = None) -> ChatNeed:
    """Return what the checkpoint says about its chat format. `template` replaces its chat
    template."""
    templates = {"": template} if template is not None else named_templates(assets)
    return ChatNeed(
        template=templates.get("tool_use")
        or templates.get("default")
        or next(iter(templates.values()), ""),
        architecture=architecture,
        response_template=assets.tokenizer_config.get("response_template"),
        token=_tokens_of(assets),
    )


def choose_chat_format(
    catalog: Catalog, need: ChatNeed, wanted: str = "auto"
) -> Decided[ChatFormatUse]:
    """Choose the format that fits best, or the one that is `wanted`. Raises OptionError if there is
    none of that name."""
    by_name = "it was asked for"
    if wanted == NONE:
        return Decided(ChatFormatUse(why=by_name, asked=True))
    if wanted != "auto":
        offer = catalog.named(ChatFormat, wanted)
        use = ChatFormatUse(name=wanted, distribution=offer.distribution, why=by_name, asked=True)
        return Decided(use, (("chat format", offer),))
    best, why, refusals = catalog.chat_format(need)
    if best is None:
        hint = catalog.missing_hint("chat format", "*") if need.template else ""
        notes = (f"tool calls and reasoning are not parsed: {hint}",) if hint else ()
        why = "no installed format matches" if need.template else "there is no chat template"
        return Decided(ChatFormatUse(why=why), (), refusals, notes)
    use = ChatFormatUse(name=best.item.name, distribution=best.distribution, why=why)
    return Decided(use, (("chat format", best),), refusals)


def named_templates(assets: TextAssets) -> dict[str, str]:
    """Return the checkpoint's chat templates by name. Checkpoints have a string, a list of {"name",
    "template"}, or an object. Raises CheckpointError."""
    source: Any = assets.chat_template or assets.tokenizer_config.get("chat_template")
    if source is None or isinstance(source, str):
        return {"default": source} if source else {}
    try:
        return (
            dict(source)
            if isinstance(source, Mapping)
            else {t["name"]: t["template"] for t in source}
        )
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            "chat_template is neither a string nor a list of named templates",
            "Give a template: --chat-template FILE",
        ) from error


def _tokens_of(assets: TextAssets) -> Callable[[str], AddedToken | None]:
    @cache
    def tokens() -> dict[str, AddedToken]:
        return {
            row["content"]: AddedToken(int(row["id"]), bool(row.get("special")))
            for row in _rows(assets)
            if isinstance(row, Mapping) and isinstance(row.get("content"), str) and "id" in row
        }

    return lambda text: tokens().get(text)


def _rows(assets: TextAssets) -> list[Any]:
    """The added tokens, in the form of `tokenizer.json`."""
    if assets.tokenizer_json is not None:
        try:
            return list(json.loads(assets.tokenizer_json).get("added_tokens") or ())
        except (ValueError, AttributeError):
            return []  # the tokenizer's reader reports it
    declared = assets.tokenizer_config.get("added_tokens_decoder")
    if not isinstance(declared, Mapping):
        return []
    return [{"id": i, **row} for i, row in declared.items() if isinstance(row, Mapping)]
