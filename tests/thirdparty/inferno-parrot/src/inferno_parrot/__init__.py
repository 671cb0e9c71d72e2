"""Text Generation Inference's `/generate`."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Endpoints


@hookimpl
def inferno_endpoints() -> list[Endpoints]:
    return [Endpoints(name="parrot", paths=("/parrot",), api="inferno_parrot.api:API")]
