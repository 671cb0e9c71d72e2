"""Anthropic's Messages API."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Endpoints


@hookimpl
def inferno_endpoints() -> list[Endpoints]:
    return [Endpoints(name="anthropic", paths=("/v1/messages",), api="inferno_anthropic.api:API")]
