"""Errors of grammars, for callers: they name the field of the request."""

from __future__ import annotations

from inferno.contracts import GrammarSpec
from inferno.errors import GrammarError, RequestError


def refused_grammar(spec: GrammarSpec, error: GrammarError) -> RequestError:
    """Return the error with the path from the request to the part at fault."""
    param = f"{spec.param}.{error.path}" if error.path else spec.param
    remedy = error.remedy or "Correct it, or leave it out."
    return RequestError(f"{param}: {error.cause}", remedy, param=param, code="invalid_grammar")
