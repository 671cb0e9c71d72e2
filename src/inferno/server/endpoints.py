"""Every endpoint of the server. Each package of an API has its handlers and its bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar.types import ControllerRouterHandler

from inferno.server import anthropic, batches, llamacpp, ollama, openai, pooling, responses, routes
from inferno.server.fields.support import Field
from inferno.server.hosting import admin
from inferno.server.observe import debug

HANDLERS: tuple[ControllerRouterHandler, ...] = (
    *openai.HANDLERS,
    *responses.HANDLERS,
    *anthropic.HANDLERS,
    *pooling.HANDLERS,
    *batches.HANDLERS,
    *ollama.HANDLERS,
    *llamacpp.HANDLERS,
    *admin.HANDLERS,
    *routes.HANDLERS,
    *debug.HANDLERS,
)
BODIES: tuple[type[Any], ...] = (
    *openai.BODIES,
    *responses.BODIES,
    *anthropic.BODIES,
    *pooling.BODIES,
    *batches.BODIES,
    *ollama.BODIES,
    *llamacpp.BODIES,
    *admin.BODIES,
    *routes.BODIES,
)
"""The class of each endpoint's request body, with its endpoint (`path`) and the support of each
field (`rows`)."""
FIELDS: Mapping[str, tuple[Field, ...]] = {body.path: body.rows for body in BODIES}
"""By endpoint."""
