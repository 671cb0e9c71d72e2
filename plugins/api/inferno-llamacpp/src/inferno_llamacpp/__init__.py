"""llama.cpp's own API, as its editor plugins use it: completion, infill, and what describes the
server."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Endpoints

PATHS = ("/completion", "/infill", "/apply-template", "/props", "/slots")


@hookimpl
def inferno_endpoints() -> list[Endpoints]:
    return [Endpoints(name="llamacpp", paths=PATHS, api="inferno_llamacpp.api:API")]
