"""llama.cpp's own API, as its editor plugins use it: completion, infill, and what describes the
server."""

from __future__ import annotations

from inferno.server.http.apis import Api
from inferno.server.llamacpp.completion import completion, infill
from inferno.server.llamacpp.schema import (
    LlamaCompletionRequest,
    LlamaInfillRequest,
    LlamaTemplateRequest,
)
from inferno.server.llamacpp.status import apply_template, props, slots

API = Api(
    handlers=(completion, infill, apply_template, props, slots),
    bodies=(LlamaCompletionRequest, LlamaInfillRequest, LlamaTemplateRequest),
)
