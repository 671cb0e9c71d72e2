"""Every endpoint of llama.cpp's API. Its errors are OpenAI's."""

from __future__ import annotations

from inferno.server.api import Api
from inferno_llamacpp.completion import completion, infill
from inferno_llamacpp.schema import (
    LlamaCompletionRequest,
    LlamaInfillRequest,
    LlamaTemplateRequest,
)
from inferno_llamacpp.status import apply_template, props, slots

API = Api(
    handlers=(completion, infill, apply_template, props, slots),
    bodies=(LlamaCompletionRequest, LlamaInfillRequest, LlamaTemplateRequest),
)
