"""The endpoints of sessions, for a server."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Endpoints


@hookimpl
def inferno_endpoints() -> list[Endpoints]:
    return [Endpoints(name="session", paths=("/v1/sessions",), api="inferno_session.api:API")]
