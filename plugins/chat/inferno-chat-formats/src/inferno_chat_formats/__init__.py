"""Chat formats of published model families: how they write reasoning and tool calls."""

from __future__ import annotations

from functools import partial

from inferno import hookimpl
from inferno.contracts import ChatFormat, ChatNeed, OutputFormat
from inferno_chat_formats.families import FAMILIES
from inferno_chat_formats.spec import Spec


@hookimpl
def inferno_chat_formats() -> list[ChatFormat]:
    return [
        ChatFormat(
            name=spec.name,
            matches=spec.matches,
            build=partial(_build, spec),
            models=spec.models,
            priority=spec.priority,
        )
        for spec in FAMILIES
    ]


def _build(spec: Spec, need: ChatNeed) -> OutputFormat:
    from inferno_chat_formats.output import Format

    return Format(spec, need)
