"""Compiles grammars with llguidance."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import GrammarProvider


@hookimpl
def inferno_grammars() -> list[GrammarProvider]:
    return [
        GrammarProvider(
            name="llguidance",
            kinds=(
                "json_schema",
                "json_object",
                "regex",
                "choice",
                "lark",
                "gbnf",
                "structural_tag",
            ),
            build="inferno_llguidance.compiler:Compiler",
        )
    ]
